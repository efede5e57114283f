"""Takes back the leases of a worker that is known to be dead at once, without waiting for their
end.

Only a process that saw the worker die, such as its parent, may use this. A silent worker may be
alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.db import in_words, is_lost, may_be_a_rows_fault, storable
from jobreaper.db.own import bounded_connection
from jobreaper.reaper.refused import RefusedRows
from jobreaper.reaper.results import ReapedJob, TableResult, jobs_of
from jobreaper.reaper.sending import LONGEST_SEARCH_SEC, announce, send, send_one_by_one
from jobreaper.states import Reason
from jobreaper.tables import JobTable, by_alias, job_tables, refused, statements


def give_back(
    table: JobTable, worker: str, how: str, reason: Reason = Reason.WORKER_LOST
) -> list[ReapedJob]:
    """Requeue or fail every job of ``table`` that the dead ``worker`` held, and return them.

    The event records ``how`` it died, such as ``"killed by SIGKILL"``. After its first loss, a job
    is due again at once; after later ones, with the stage's backoff. With the ``reason``
    ``WORKER_STOPPED``, the worker had been told to stop: no attempt is counted, and nothing waits.
    A job whose row cannot be written is remembered and left to the reaper, and does not stop the
    others.

    Raises:
        django.db.Error: the database could not be reached; the leases run out and are reaped.
    """
    connection = table.connection()
    params = {"worker": worker, "how": storable(how), "reason": reason}
    try:
        rows = send(connection, table.statement("worker_lost"), params)
    except DatabaseError as error:
        if not may_be_a_rows_fault(connection, error):
            raise
        tried = send_one_by_one(
            connection, one_by_one_statement(table), params, search_sec=LONGEST_SEARCH_SEC
        )
        rows = RefusedRows(connection, table, TableResult()).take(tried)
    jobs = jobs_of(table, rows)
    announce(connection, table, jobs)
    return jobs


def give_back_everywhere(worker: str, how: str, reason: Reason = Reason.WORKER_LOST) -> list[str]:
    """Give back the jobs of a dead worker in every job table, and return what went wrong. Never
    raises an exception.

    Each database gets a connection for a moment: processes that are forked later inherit none, and
    a database that does not answer delays the caller no longer than some seconds.
    """
    errors: list[str] = []
    dead: dict[str, Any] = {"worker": worker, "how": how, "reason": reason}
    for alias, tables in by_alias(t for t in job_tables() if t.can_be_leased).items():
        try:
            with bounded_connection(alias) as connection:
                errors += _give_back_in(connection, tables, partial(give_back, **dead))
        except Exception as error:
            errors.append(in_words(error))
    return errors


def _give_back_in(
    connection: BaseDatabaseWrapper,
    tables: Iterable[JobTable],
    give_back_of: Callable[[JobTable], object],
) -> list[str]:
    errors = []
    for table in tables:
        try:
            give_back_of(table)
        # A problem with one table must not affect the others.
        except Exception as error:
            errors.append(f"{table.name}: {table.in_words(error)}")
            if is_lost(connection):
                break
    return errors


def one_by_one_statement(table: JobTable) -> str:
    """Return the statement that takes the jobs from a dead worker one by one."""
    return refused.one_by_one_statement(
        table,
        statements.leased(table, "held_by_worker"),
        statements.leased(table, "worker_lost", among=refused.row_of_candidate(table)),
    )
