"""Settings as YAML text: a line for each key, its value in flow style. The same value is always the same text.

Made for settings alone: mappings with plain keys, lists, texts, numbers, booleans. It is what names a ConfigMap, so it
must not change with a library's version, and it is made on every look at a TokTier.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def yaml_lines(settings: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for key, value in settings.items():
        if isinstance(value, list) and value:
            lines += [f"{key}:", *(f"- {_flow(each)}" for each in value)]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")  # YAML 1.1 reads 1e-05 as a text
        return text if "." in text else f"{text}.0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    raise TypeError(f"settings have no {type(value).__name__}")


def _character(each: str) -> str:
    plain = " " <= each <= "~" and each not in '"\\'
    return each if plain else f"\\U{ord(each):08X}"
