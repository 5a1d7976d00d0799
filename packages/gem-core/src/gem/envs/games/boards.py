"""Boards: sets of cells as the bits of integers, and the layouts of text that the games share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def bits(cells: int) -> Iterator[int]:
    """Yield the indices in a bit set, lowest first."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


def plain(rows: Iterable[Iterable[object]], width: int = 1) -> str:
    """Return rows of cells, right-aligned in `width` characters and separated by a space."""
    return "\n".join(" ".join(str(cell).rjust(width) for cell in row) for row in rows)


def headed(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of single-character cells under column names C00, C01, ... after R00, R01, ...

    Every cell is as wide as its column's name.
    """
    columns = len(rows[0]) if rows else 0
    lines = ["    " + " ".join(f"C{column:02}" for column in range(columns))]
    for index, row in enumerate(rows):
        lines.append(f"R{index:02} " + " ".join(f" {cell} " for cell in row).rstrip())
    return "\n".join(lines)
