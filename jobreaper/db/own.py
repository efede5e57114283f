"""Connections of the package's own, which neither a pool nor a dead network can take from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper.db.connection import connection_for
from jobreaper.db.retry import no_retries

# These are libpq's names. With them, a host that disappeared is noticed within seconds, not after
# the quarter of an hour that TCP takes. https://www.postgresql.org/docs/current/libpq-connect.html
NETWORK_OPTIONS: Final = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """Return this thread's connection to ``alias``, configured so that a dead network cannot block
    it.

    It does not come from a pool, so heartbeats continue when the work uses every connection.
    """
    connection = connection_for(alias)
    if not getattr(connection, "jobreaper_heartbeat", False):
        connection = connection.copy(alias)
        options = connection.settings_dict["OPTIONS"]
        options.pop("pool", None)
        for option, value in NETWORK_OPTIONS.items():
            options.setdefault(option, value)
        connection.jobreaper_heartbeat = True  # type: ignore[attr-defined]
        connections[alias] = connection
    return connection


@contextmanager
def bounded_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Give this thread such a connection until the block ends, for a process that cannot wait long.
    Nothing remains open afterwards.
    """
    before = connection_for(alias)
    before.close()
    try:
        with no_retries():
            yield own_connection(alias)
    finally:
        connections[alias].close()
        connections[alias] = before
