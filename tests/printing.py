"""Tables on standard output, for tests that measure or count."""

from collections.abc import Sequence


def print_table(title: str, rows: Sequence[Sequence[object]]) -> None:
    """Print a title and rows of equal length, the first of them headings."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n\n{title}\n")
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        print("  ", first[0].ljust(first[1]), *(cell.rjust(w) for cell, w in others), sep="  ")
