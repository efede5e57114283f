"""Every SQL statement of the package, one ``.sql`` file each.

``statements/`` holds what is sent to the server, ``fragments/`` the parts that several statements
share. ``{name}`` is a part that psycopg.sql composes: an identifier, a word from ``states.py`` or a
fragment. ``%(name)s`` is a parameter of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

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
)


@cache
def source(path: str) -> str:
    """Return the text of a ``.sql`` file below this package, such as ``"statements/claim"``."""
    return (files(__package__) / f"{path}.sql").read_text(encoding="utf-8").strip()


@cache
def vocabulary() -> Mapping[str, Composable]:
    """Return the words that statements may name: statuses, reasons, codes, event types."""
    words: dict[str, Composable] = {
        "longest_lease_sec": Literal(LONGEST_MS // 1000),
        "largest": Literal(2**63 - 1),
        "most_stages": Literal(MOST_STAGES),
        "other_stage": Literal(OTHER_STAGE),
        # Timestamps inside an event are read by people and programs in any time zone.
        "iso_utc": Literal('YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    }
    for words_of in (Status, LeaseState, Reason, FailCode, OnExpiry, EventType, Counted):
        words |= {member.name.lower(): Literal(member.value) for member in words_of}
    return words


def compose(path: str, parts: Mapping[str, Composable]) -> Composed:
    """Return a ``.sql`` file with its ``{names}`` filled from ``parts`` and the vocabulary."""
    return SQL(source(path)).format(**{**vocabulary(), **parts})


def render(path: str, parts: Mapping[str, Composable] | None = None) -> str:
    """Return a statement as text, ready to be sent with its parameters."""
    return _with_percent_doubled(compose(path, parts or {})).as_string(None)


def plain(path: str, parts: Mapping[str, Composable]) -> str:
    """Return a statement as text, to be sent without parameters."""
    return compose(path, parts).as_string(None)


def _with_percent_doubled(part: Composable) -> Composable:
    """Return a part in whose names and words the driver sees no parameter."""
    if isinstance(part, Composed):
        return Composed([_with_percent_doubled(each) for each in part])
    if isinstance(part, Identifier | Literal):
        return SQL(part.as_string(None).replace("%", "%%"))
    return part
