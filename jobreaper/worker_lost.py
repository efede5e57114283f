"""Leases of a worker that is known to be dead: taken back at once, without waiting for their end.

Only a process that saw the worker die may say so, such as its parent. Silence is not death.
"""

from __future__ import annotations

from jobreaper import conf
from jobreaper.db import fetch_within, storable
from jobreaper.reaper import LOCK_TIMEOUT_SEC, STATEMENT_TIMEOUT_SEC, ReapedJob, announce
from jobreaper.tables import JobTable
from jobreaper.worker import worker_id


def give_back(table: JobTable, worker: str, how: str) -> list[ReapedJob]:
    """Requeue or fail every job of ``table`` that the dead ``worker`` held, and return them.

    ``how`` it died is for the record, such as ``"killed by SIGKILL"``. The first loss of a job is
    due again at once, later ones with the stage's backoff.

    Raises:
        django.db.Error: the database could not be reached; the leases run out and are reaped.
    """
    connection = table.connection()
    rows = fetch_within(
        connection,
        table.statement("worker_lost"),
        {
            "worker": worker,
            "how": storable(how),
            "reaper": worker_id(),
            "policies": conf.settings().policies_json,
        },
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
    jobs = list(map(ReapedJob._make, rows))
    announce(connection, table, jobs)
    return jobs
