"""What is needed to compile a kernel ahead of time. Imports nothing of Triton's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class AheadSpec:
    """A kernel as its launcher runs it: `AHEAD` of each kernel module lists them.

    `fn` is the `@triton.jit` function, `signature` its run-time parameters' Triton types by name (`"*u8"`, `"i32"`),
    `constexprs` the values of the others. A `hot` kernel must compile without register spills for every target.
    """

    fn: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, int | bool]
    num_warps: int
    hot: bool = True
    name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", str(self.fn.__name__))
        wanted = list(self.fn.arg_names)
        if sorted([*self.signature, *self.constexprs]) != sorted(wanted):
            raise ValueError(f"{self.name}: signature and constexprs don't make up {wanted}")

    @property
    def full_signature(self) -> dict[str, str]:
        """Types of all parameters in the kernel's order, `"constexpr"` for constants: what `ASTSource` takes."""
        return {name: self.signature.get(name, "constexpr") for name in self.fn.arg_names}

    @property
    def attributes(self) -> dict[tuple[int], list[list[object]]]:
        """`ASTSource`'s `attrs`: pointers are aligned to 16 bytes, as allocators give them."""
        types = self.full_signature.values()
        return {(index,): [["tt.divisibility", 16]] for index, type_ in enumerate(types) if type_.startswith("*")}
