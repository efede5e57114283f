"""All SQL statements of the package, in ``.sql`` files.

``statements/`` contains what is sent to the server, ``fragments/`` the parts that several
statements share. A file has the statements of one subject, each after a line ``-- name: <name>``,
which is not sent. A file without such a line is one statement with the name of the file.

``{name}`` is a part that psycopg.sql composes: an identifier, a word from ``states.py`` or a
fragment. ``%(name)s`` is a parameter of the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from string import Formatter
from typing import Final

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from jobreaper.policies import LONGEST_MS, MOST_STAGES, OTHER_STAGE
from jobreaper.states import (
    Counted,
    EventType,
    FailCode,
    LeaseState,
    OnExpiry,
    Reason,
    Status,
    WorkerState,
)
from jobreaper.values import LONGEST_NAME

# The package's own tables that statements name as parts. Python's statements leave their schema to
# the search_path, functions in the database name it.
OWN_TABLES: Final = (
    "job_events",
    "jobreaper_passes",
    "jobreaper_pauses",
    "jobreaper_refused_rows",
    "jobreaper_stages",
    "jobreaper_totals",
    "jobreaper_workers",
)

_SECTION = re.compile(r"^--[ \t]*name:[ \t]*(\w+)[ \t]*$", re.MULTILINE)


def source(path: str) -> str:
    """Return a statement or fragment by its folder and name, such as ``"statements/claim"``.

    Raises ``KeyError`` if the folder has none with this name.
    """
    folder, _, name = path.rpartition("/")
    return _folder(folder)[name]


@cache
def _folder(folder: str) -> Mapping[str, str]:
    paths = sorted((files(__package__) / folder).iterdir(), key=lambda path: path.name)
    return by_name(
        {
            path.name.removesuffix(".sql"): path.read_text(encoding="utf-8")
            for path in paths
            if path.name.endswith(".sql")
        }
    )


def by_name(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the statements in files by their names, from the texts of the files by theirs.

    Raises ``ValueError`` if two statements have the same name, or if something other than comments
    is before the first name.
    """
    found: dict[str, str] = {}
    for file, text in texts.items():
        heading, *sections = _SECTION.split(text)
        if not sections:
            heading, sections = "", [file, heading]
        if any(line and not line.startswith("--") for line in heading.splitlines()):
            raise ValueError(f"{file}.sql has a statement before its first name")
        for name, statement in zip(sections[::2], sections[1::2], strict=True):
            if name in found:
                raise ValueError(f"Two statements have the name {name}, one is in {file}.sql")
            found[name] = statement.strip()
    return found


@cache
def vocabulary() -> Mapping[str, Composable]:
    """Return the words that statements may name: statuses, reasons, codes, event types, and the
    package's own tables.
    """
    words: dict[str, Composable] = {
        **{name: SQL(name) for name in OWN_TABLES},
        "longest_lease_sec": Literal(LONGEST_MS // 1000),
        "largest": Literal(2**63 - 1),
        "longest_name": Literal(LONGEST_NAME),
        "most_stages": Literal(MOST_STAGES),
        "other_stage": Literal(OTHER_STAGE),
        # People and programs in any time zone read the timestamps in an event.
        "iso_utc": Literal('YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    }
    for words_of in (
        *(Status, LeaseState, Reason, FailCode, OnExpiry, EventType, Counted),
        WorkerState,
    ):
        words |= {member.name.lower(): Literal(member.value) for member in words_of}
    return words


def compose(path: str, parts: Mapping[str, Composable | None]) -> Composed:
    """Return a statement or fragment with its ``{names}`` filled from ``parts`` and the vocabulary.

    A part with several lines is indented like its name, and a line with only an empty part is left
    out, so that the statement is readable. A line with a part that is None, such as a column that
    the table does not have, is left out too.
    """
    parts = {**vocabulary(), **parts}
    lines = [_line(line, parts) for line in source(path).split("\n")]
    return SQL("\n").join([line for line in lines if line is not None])


def _line(source: str, parts: Mapping[str, Composable | None]) -> Composed | None:
    pieces: list[Composable] = []
    so_far = ""
    for text, name, *_ in Formatter().parse(source):
        pieces.append(SQL(text))
        so_far += text
        if name:
            given = parts[name]
            if given is None:
                return None
            part = indented(given, len(so_far.rpartition("\n")[2]))
            pieces.append(part)
            so_far += part.as_string(None)
    return None if source.strip() and not so_far.strip() else Composed(pieces)


def indented(part: Composable, by: int) -> Composable:
    """Return a part with all lines but the first indented. Names and words do not change."""
    if isinstance(part, Composed):
        return Composed([indented(each, by) for each in part])
    if isinstance(part, SQL):
        return SQL(part.as_string(None).replace("\n", "\n" + " " * by))
    return part


def render(path: str, parts: Mapping[str, Composable | None] | None = None) -> str:
    """Return a statement as text, ready to be sent with its parameters."""
    if not parts:
        return _without_parts(path)
    return _with_percent_doubled(compose(path, parts)).as_string(None)


@cache
def _without_parts(path: str) -> str:
    return _with_percent_doubled(compose(path, {})).as_string(None)


def plain(path: str, parts: Mapping[str, Composable]) -> str:
    """Return a statement as text, to be sent without parameters."""
    return compose(path, parts).as_string(None)


# A quoted text or name, which stays as it is; or comments and white space. Two texts are one only
# if there is a line's end between them.
_QUOTED_OR_NOT_SENT: Final = re.compile(
    r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|(?:--[^\n]*|\s)+""",
)


@lru_cache(maxsize=1024)
def without_comments(statement: str) -> str:
    """Return a rendered statement as it is sent, without its comments and its indentation.

    That is less to send and to read. It matters most to the driver: up to 4,096 bytes, it remembers
    where the parameters of a statement are.
    """
    return _QUOTED_OR_NOT_SENT.sub(
        lambda found: found[1] or ("\n" if "\n" in found[0] else " "), statement
    ).strip()


def _with_percent_doubled(part: Composable) -> Composable:
    """Return a part in whose names and words the driver finds no parameter."""
    if isinstance(part, Composed):
        return Composed([_with_percent_doubled(each) for each in part])
    if isinstance(part, Identifier | Literal):
        return SQL(part.as_string(None).replace("%", "%%"))
    return part
