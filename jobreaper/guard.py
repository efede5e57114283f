"""The decision to hold a pass back, in one place.

After PostgreSQL was away every lease may have run out while its worker is well. The guard gives
workers a moment to beat again before anything is reaped.
"""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import conf, sql
from jobreaper.db import fetch


def reason_to_hold(connection: BaseDatabaseWrapper) -> str | None:
    """Return why a pass must reap nothing now, ``None`` where it may go on.

    It came up by a start, by its recovery from a crash or by a failover. Where no pass had run
    before, no worker can be about to beat, and nothing is held.
    """
    grace_sec = conf.settings().recovery_grace_sec
    [(up_sec,)] = fetch(connection, sql.render("statements/server_back"), {})
    if up_sec is None or up_sec >= grace_sec:
        return None
    return (
        f"PostgreSQL came up {up_sec:.0f} s ago; workers have until {grace_sec:g} s after that "
        "to beat again (RECOVERY_GRACE_SEC)"
    )
