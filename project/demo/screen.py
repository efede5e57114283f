"""What the demo prints: lines with the time since its start, in color only on a terminal."""

import os
import sys
import time
from collections.abc import Mapping, Sequence

RED, GREEN, YELLOW, BOLD = "31", "32", "33", "1"


class Screen:
    """A story's lines."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def say(self, text: str, colour: str = "") -> None:
        """Print a line of the story."""
        self._print(f"{time.monotonic() - self.started:5.1f} s  ", text, colour)

    def show(self, text: str, colour: str = "") -> None:
        """Print a line without a time."""
        self._print("", text, colour)

    def table(self, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
        """Print rows with the same keys as a table, each after its name."""
        cells = [["", *rows[0]]]
        cells += [[name, *map(str, row.values())] for name, row in zip(names, rows, strict=True)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        print()
        for (name, *values), colour in zip(cells, [BOLD, *([""] * len(rows))], strict=True):
            padded = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
            self.show("  ".join([name.ljust(widths[0]), *padded]), colour)
        print(flush=True)

    def _print(self, margin: str, text: str, colour: str) -> None:
        if colour and self.coloured:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        print(margin + text, flush=True)
