"""What a pass may take, so that workers that fell silent together can come back first.

A network or a pooler that is away silences many workers at once, and their leases run out although
they are healthy. The statement decides, by the rule of ``hold.common_silence()``, and the records
of passes remember when a common silence was first seen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf
from jobreaper.db import fetch_within
from jobreaper.reaper.hold import server_up_sec
from jobreaper.reaper.sending import LOCK_TIMEOUT_SEC, STATEMENT_TIMEOUT_SEC
from jobreaper.tables import JobTable, statements

# Values of ``Look.silent_by``.
ALL: Final = "infinity"
NONE: Final = "-infinity"


class Look(NamedTuple):
    """Which tables could be read, which of them have anything to reap, and what a pass may take of
    it: leases of workers that fell silent by ``silent_by``, a time as the database writes it;
    ``reason`` says why not all. If a common silence is seen for the first time, ``silent_until`` is
    when its last worker was heard of.
    """

    tables: Collection[JobTable]
    due: Collection[JobTable]
    silent_by: str = ALL
    reason: str | None = None
    silent_until: datetime | None = None


def look(
    connection: BaseDatabaseWrapper, tables: Sequence[JobTable], due: Collection[JobTable]
) -> Look:
    """Return what may be taken of the tables that are ``due``. The workers are those that hold jobs
    of ``tables``.
    """
    if not due or not any(map(statements.shows_silence, tables)):
        return Look(tables, due)
    settings = conf.settings()
    [row] = fetch_within(
        connection,
        statements.silence(tables),
        {
            "grace_sec": settings.recovery_grace_sec,
            "heartbeat_sec": settings.heartbeat_sec,
            "up_sec": server_up_sec(connection),
        },
        lock_timeout_sec=LOCK_TIMEOUT_SEC,
        statement_timeout_sec=STATEMENT_TIMEOUT_SEC,
    )
    return Look(tables, due, *row)
