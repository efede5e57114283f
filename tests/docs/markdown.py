"""Reading the documentation as its readers do: sections, tables, code blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"(?<!\\)\|")


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    code: str


def page(name: str) -> str:
    """The text of `docs/<name>.md`."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def section(text: str, heading: str) -> str:
    """What stands under the heading, down to the next one of its level or above."""
    found = list(_headings(text))
    [(level, start)] = [(level, end) for level, name, _, end in found if name == heading]
    ends = (begin for other, _, begin, _ in found if begin >= start and other <= level)
    return text[start : next(ends, None)]


def headings(text: str, level: int) -> list[str]:
    """The headings of that level."""
    return [name for other, name, _, _ in _headings(text) if other == level]


def blocks(text: str, language: str | None = None) -> list[Block]:
    """The fenced blocks in that language, all of them for `None`."""
    found = [Block(*match) for match in _FENCED.findall(text)]
    return [block for block in found if language in (None, block.language)]


def files(text: str) -> list[tuple[str, str]]:
    """The Python files that `text` shows: path and code. Their first line names the path."""
    found = [(re.match(r"# (\S+\.py)\n", code), code) for _, code in blocks(text, "python")]
    return [(path[1], code) for path, code in found if path is not None]


def commands(text: str) -> list[str]:
    """The commands that `text` prints, without their comments."""
    lines = [line for _, code in blocks(text, "sh") for line in code.splitlines()]
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def links(text: str) -> list[str]:
    """Where the relative links of `text` lead, without their fragments."""
    found = re.findall(r"\]\(([^)#\s]+)", text)
    return [link for link in found if "://" not in link]


def rows(text: str) -> list[list[str]]:
    """The cells of every table's body in `text`, row by row."""
    return [row for table in _tables(text) for row in table[2:]]


def code(cell: str) -> list[str]:
    """What a cell writes as code."""
    return [span.replace("\\|", "|") for span in re.findall(r"`([^`]+)`", cell)]


def _headings(text: str) -> Iterator[tuple[int, str, int, int]]:
    """The level, words, start and end of each heading; a comment in code is none."""
    code = [match.span() for match in _FENCED.finditer(text)]
    for match in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE):
        if not any(start <= match.start() < end for start, end in code):
            yield len(match[1]), match[2], match.start(), match.end()


def _tables(text: str) -> Iterator[list[list[str]]]:
    table: list[list[str]] = []
    for line in [*_FENCED.sub("", text).splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in _CELL.split(line)[1:-1]])
        elif table:
            yield table
            table = []
