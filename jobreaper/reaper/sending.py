"""Sends statements that take jobs from their workers, within time limits, and announces the
results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, signals
from jobreaper.db import fetch_within, on_commit
from jobreaper.identity import worker_id
from jobreaper.reaper.results import ReapedJob
from jobreaper.tables import JobTable, refused
from jobreaper.tables.refused import Tried

# If a migration has locked a table, the next pass tries again.
LOCK_TIMEOUT_SEC: Final = 0.5
# A batch takes milliseconds. If it takes longer than this, the index is missing.
STATEMENT_TIMEOUT_SEC: Final = 30.0
# Candidates are tried one by one for at most this long in one transaction.
LONGEST_SEARCH_SEC: Final = 10.0

Check = Callable[[list[tuple[Any, ...]]], object]


def send(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    *,
    timeout_sec: float | None = None,
    check: Check | None = None,
) -> list[tuple[Any, ...]]:
    """Send a statement that takes jobs, and return its rows, of which ``jobs_of()`` makes jobs. If
    ``check`` raises an exception for them, it is rolled back.
    """
    return fetch_within(
        connection,
        statement,
        {**params, **who_and_how()},
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC if timeout_sec is None else timeout_sec,
        check=check,
    )


def send_one_by_one(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    *,
    search_sec: float,
    check: Check | None = None,
) -> list[Tried]:
    """Try candidates one by one for at most ``search_sec``, and return the result of each. If
    ``check`` raises an exception for the rows, everything is rolled back.
    """
    return refused.one_by_one(
        connection,
        statement,
        {**params, **who_and_how()},
        search_sec=min(search_sec, LONGEST_SEARCH_SEC),
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
        check=check,
    )


def announce(connection: BaseDatabaseWrapper, table: JobTable, jobs: list[ReapedJob]) -> None:
    """Send ``job_reaped`` once the reap is committed."""
    if jobs:
        tell = signals.job_reaped.send_robust
        on_commit(connection, partial(tell, table.model, table=table.name, jobs=jobs))


def who_and_how() -> dict[str, Any]:
    """Return the parameters that all statements of a pass share."""
    return {"policies": conf.settings().policies_json, "reaper": worker_id()}
