"""What happened by minute and by hour, from the events and the passes, for charts."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import sql
from jobreaper.explaining.facts import ask

# Of each step; what comes after them is taken to be like them.
MOST_EVENTS: Final = 500
MOST_PASSES: Final = 5_000


class Span(Enum):
    """A length of time with its steps: how many, and how long each is in seconds."""

    HOUR = (60, 60)
    DAY = (24, 3600)

    @property
    def params(self) -> dict[str, int]:
        """The parameters of a statement."""
        buckets, step_sec = self.value
        return {"buckets": buckets, "step_sec": step_sec}


class Step(NamedTuple):
    """What happened in one step. Times of waiting are in seconds, ``None`` if nothing began.
    ``is_rough``: only the first events were read.
    """

    at: datetime
    finished: int
    retried: int
    failed: int
    requeued: int
    waited_sec: float | None
    waited_longest_sec: float | None
    is_rough: bool


class PassStep(NamedTuple):
    """The passes of one step."""

    at: datetime
    number: int
    requeued: int
    failed: int
    held: int
    errors: int
    longest_ms: int


def series(connection: BaseDatabaseWrapper, span: Span) -> list[Step]:
    """Return what ended in each step of the last hour or day, oldest first."""
    params = {**span.params, "most": MOST_EVENTS}
    return [_step(*row) for row in ask(connection, sql.render("statements/series"), params)]


def _step(
    at: float,
    read: int,
    finished: int,
    retried: int,
    failed: int,
    requeued: int,
    waited_ms: float | None,
    longest_ms: float | None,
    stretch: float,
) -> Step:
    return Step(
        at=datetime.fromtimestamp(at, UTC),
        finished=round(finished * stretch),
        retried=round(retried * stretch),
        failed=round(failed * stretch),
        requeued=round(requeued * stretch),
        waited_sec=None if waited_ms is None else waited_ms / 1000,
        waited_longest_sec=None if longest_ms is None else longest_ms / 1000,
        is_rough=read >= MOST_EVENTS,
    )


def passes(connection: BaseDatabaseWrapper, span: Span) -> list[PassStep]:
    """Return the passes of each step that had any, oldest first."""
    params = {**span.params, "most": MOST_PASSES}
    rows = ask(connection, sql.render("statements/passes_by_time"), params)
    return [PassStep(datetime.fromtimestamp(at, UTC), *others) for at, *others in rows]
