"""Lets SGLang start where no CUDA library is. On PYTHONPATH, so that the interpreter and all its children import it.

1. triton, where none is installed (torch's CPU build brings none): a stand-in whose decorators give functions back.
2. torchvision, where its C++ operators didn't load (PyPI's wheel needs CUDA's libraries): the two that it registers
   fakes for are declared.

`sgl_kernel` beside this file stands in for the wheel that only a GPU can load.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar


class StandInClass:
    def __init__(self, *arguments: object, **options: object) -> None:
        pass

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, item: object) -> type:
        return cls


class StandInModule(types.ModuleType):
    """Any name below it exists: a class where it is written like one, else a module that is also a decorator."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if name[:1].isupper():
            value: Any = type(name, (StandInClass,), {})
        else:
            value = sys.modules.setdefault(full, StandInModule(full))
        setattr(self, name, value)
        return value

    def __call__(self, *arguments: Any, **options: object) -> Any:
        if len(arguments) == 1 and not options and callable(arguments[0]):
            return arguments[0]

        def decorate(function: Callable[..., Any] | None = None) -> Callable[..., Any] | None:
            return function

        return decorate

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    has_triton: ClassVar[bool] = importlib.machinery.PathFinder.find_spec("triton") is not None
    declared: ClassVar[Any] = None  # the library object must outlive the declarations

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] == "triton" and not self.has_triton:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        # torchvision imports its .extension first; only then is it known whether its operators loaded.
        extension = sys.modules.get("torchvision.extension")
        checked = name.startswith("torchvision.") and hasattr(extension, "_check_cuda_version")
        if checked and self.declared is None and not extension._has_ops():  # type: ignore[union-attr]
            self._declare_operators()
        return None

    def _declare_operators(self) -> None:
        import torch

        if not hasattr(torch.ops.torchvision, "nms"):
            Finder.declared = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                self.declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandInModule(spec.name)
        if spec.name == "triton":
            vars(module).update(
                __version__="3.0.0",
                cdiv=lambda numerator, denominator: -(-numerator // denominator),
                next_power_of_2=lambda number: 1 << (number - 1).bit_length() if number > 0 else 1,
            )
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
