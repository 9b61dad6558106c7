"""Dictionaries of the API server as frozen dataclasses and back, by the dataclasses' own fields.

A field `models_seen` is the key `modelsSeen`, unless its metadata says otherwise. Rules:
1. A key that is absent or null has the field's default; one without a default raises `SpecError`.
2. A value of another type raises `SpecError`, with the path to it.
3. Unknown keys are passed over: the API server has pruned or refused them, and a newer CRD may have more.
4. `write` leaves out what is None or empty, so that `read` of what it wrote is equal; numbers and booleans stay.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .quantities import duration_s, quantity_bytes

T = TypeVar("T")


class SpecError(ValueError):
    """`path`: of the field, like spec.upstream.urls[0]; `problem`: what is wrong with it, in words."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def duration(key: str, default_s: float) -> Any:
    """A field in seconds whose key is a duration."""
    return dataclasses.field(default=default_s, metadata={"key": key, "read": duration_s})


def size(key: str, default_bytes: int) -> Any:
    """A field in bytes whose key is a quantity."""
    return dataclasses.field(default=default_bytes, metadata={"key": key, "read": quantity_bytes})


def read(kind: type[T], value: object, path: str) -> T:
    """`value`, found at `path`, as the dataclass `kind`. Raises `SpecError`."""
    if not isinstance(value, Mapping):
        raise SpecError(path, "is an object")
    found: dict[str, Any] = {}
    for each, key, hint in _fields(typing.cast(Any, kind)):
        inner = value.get(key)
        where = f"{path}.{key}"
        if inner is None:
            if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                raise SpecError(where, "is missing")
        elif "read" in each.metadata:
            found[each.name] = _converted(each.metadata["read"], inner, where)
        else:
            found[each.name] = _read(hint, inner, where)
    return kind(**found)


def write(value: Any) -> Any:
    """A dataclass without converted fields, as the API server takes it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        written = {key: write(getattr(value, each.name)) for each, key, _ in _fields(type(value))}
        return {key: inner for key, inner in written.items() if inner is not None and inner not in ("", [], {})}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [write(each) for each in value]
    if isinstance(value, Mapping):
        return {key: write(each) for key, each in value.items()}
    return value


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


@functools.cache
def _fields(kind: type) -> tuple[tuple[dataclasses.Field[Any], str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (each, each.metadata.get("key", camel_case(each.name)), hints[each.name]) for each in dataclasses.fields(kind)
    )


def _converted(convert: Callable[[object], Any], value: object, path: str) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise SpecError(path, str(error)) from None


def _read(hint: Any, value: object, path: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _read_union(hint, value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise SpecError(path, "is a list")
        inner = typing.get_args(hint)[0]
        return tuple(_read(inner, each, f"{path}[{index}]") for index, each in enumerate(value))
    if origin is not None:  # Mapping[str, X]
        if not isinstance(value, Mapping):
            raise SpecError(path, "is an object")
        inner = typing.get_args(hint)[1]
        return {str(key): _read(inner, each, f"{path}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return read(typing.cast(type, hint), value, path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise SpecError(path, f"is one of {', '.join(str(each.value) for each in hint)}") from None
    return _read_plain(hint, value, path)


def _read_union(hint: Any, value: object, path: str) -> Any:
    """`X | None`, or a choice of plain types such as `int | str`."""
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    if len(inner) == 1:
        return _read(inner[0], value, path)
    if type(value) not in inner:
        raise SpecError(path, f"is a {' or a '.join(_WORDS[each] for each in inner)}")
    return value


_WORDS = {str: "text", int: "whole number", float: "number", bool: "boolean"}


def _read_plain(hint: Any, value: object, path: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not hint:
        raise SpecError(path, f"is a {_WORDS[hint]}")
    return value
