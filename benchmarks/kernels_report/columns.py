"""Tables of plain text: these programs also run where nothing but the kernels' own needs is installed."""

from __future__ import annotations

from collections.abc import Sequence


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Words to the left and numbers to the right; floats have been formatted by whoever knows their unit."""
    cells = [[f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell) for cell in row]
             for row in rows]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(header))]

    def line(row: Sequence[str]) -> str:
        pairs = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in pairs).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def _is_number(cell: object) -> bool:
    return isinstance(cell, int) or (isinstance(cell, str) and cell[:1].isdigit()) or cell in ("", "-")
