"""The jobs that stand still, of all tables, with why and what happens next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.db import Error

from jobreaper.explaining import Explanation, explain_many
from jobreaper.explaining.facts import ask
from jobreaper.reaper.results import jobs_of
from jobreaper.reaper.sending import send
from jobreaper.tables import JobTable, job_tables, statements

# A due job that has waited for longer is called stuck; the alert rules use the same number.
OVERDUE_SEC: Final = 900.0
# Of one table, and of one kind.
MOST_OF_A_TABLE: Final = 20

# Given a table and keys, it returns the keys that somebody may see.
Visible = Callable[[JobTable, list[Any]], Collection[Any]]


@dataclass(frozen=True)
class StuckJob:
    """A job that stands still, and for how many seconds it has."""

    table: JobTable
    pk: Any
    age_sec: float | None
    explanation: Explanation


def stuck_jobs(
    tables: Iterable[JobTable] | None = None, visible: Visible | None = None
) -> list[StuckJob]:
    """Return the jobs that stand still, longest first: the first ones of each table. ``visible``
    leaves out jobs that somebody may not see. A table that does not answer has none.
    """
    found: list[StuckJob] = []
    for table in job_tables() if tables is None else tables:
        try:
            ages = _ages(table)
            shown = list(ages) if visible is None else list(visible(table, list(ages)))
            explained = explain_many(table, shown)
        except Error:
            continue  # its line among the tables says so
        found += [StuckJob(table, each.pk, ages[each.pk], each) for each in explained]
    return sorted(found, key=lambda job: -(job.age_sec or 0))


def _ages(table: JobTable) -> dict[Any, float | None]:
    """Return the ages of the stuck jobs by their keys, the longest of each kind first."""
    if not table.can_be_leased:
        params = {"batch": MOST_OF_A_TABLE, "skip": [], "silent_by": "infinity"}
        rows = send(table.connection(), table.reap_dry_run_statement, params)
        jobs = jobs_of(table, rows)
        return {job.pk: None if job.overdue_ms is None else job.overdue_ms / 1000 for job in jobs}
    params = {"most": MOST_OF_A_TABLE, "overdue_sec": OVERDUE_SEC}
    ages: dict[Any, float | None] = {}
    counted: dict[str, int] = defaultdict(int)
    for _, key, kind, age_sec, *as_read in ask(table.connection(), statements.stuck(table), params):
        counted[kind] += 1
        if counted[kind] <= MOST_OF_A_TABLE:
            ages[table.read_pk(key, *as_read)] = age_sec
    return ages
