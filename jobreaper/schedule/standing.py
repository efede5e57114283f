"""How the schedules stand that this process knows, for the metrics."""

from __future__ import annotations

from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import sql
from jobreaper.db import fetch
from jobreaper.schedule.declared import declared


class Standing(NamedTuple):
    """One schedule. ``last`` and ``next`` are seconds since the epoch, ``None`` where there is no
    such time; ``overdue_sec`` is for how long its next time has passed without a job.
    """

    name: str
    last: float | None
    next: float | None
    overdue_sec: float
    is_paused: bool
    is_failing: bool


def read(connection: BaseDatabaseWrapper) -> list[Standing]:
    """Return the schedules that are declared here and recorded, by name. One that is declared no
    more makes no jobs, and nobody waits for it.

    Raises:
        django.db.Error: the database could not be reached.
    """
    names = sorted(declared())
    if not names:
        return []
    rows = fetch(connection, sql.render("statements/schedules_standing"), {"names": names})
    return [Standing(*row) for row in rows]
