"""Statements over a session of another thread, between two of its own statements.

A process that may open no further connection still has those that it has opened.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Final
from weakref import WeakSet

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import ClientCursor
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from jobreaper import sql
from jobreaper.identity import local_clock

# A session whose own statement takes longer is not waited for.
LONGEST_WAIT_SEC: Final = 0.1

# An answer may be late by this much. A session that does not answer is of no use to its owner
# either, and is ended, since nobody could tell later whose answer comes.
LONGEST_DELAY_SEC: Final = 2.0

_lock = threading.Lock()
_opened: defaultdict[str, WeakSet[psycopg.Connection[Any]]] = defaultdict(WeakSet)


def connect() -> None:
    """Remember the sessions that this process opens from now on; called once, at start-up."""
    connection_created.connect(_remember, dispatch_uid="jobreaper.borrowed")


def _remember(sender: object, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if connection.vendor == "postgresql":
        with _lock:
            _opened[connection.alias].add(connection.connection)


def sessions(alias: str) -> list[psycopg.Connection[Any]]:
    """Return the open sessions of this process with the database ``alias``."""
    with _lock:
        return [session for session in _opened[alias] if not session.closed]


def fetch_between(
    over: psycopg.Connection[Any],
    statement: str,
    params: Mapping[str, Any],
    *,
    lock_timeout_sec: float,
    statement_timeout_sec: float,
    session: str,
) -> list[tuple[Any, ...]] | None:
    """Send one statement in a transaction of its own, as ``fetch_within()`` does. Return its rows,
    or ``None`` if the owner is in a transaction or in a statement: the statement must not become
    part of that transaction.

    Raises:
        psycopg.Error: the statement failed, which has changed nothing for the owner.
    """
    limits = {
        "lock_timeout": f"{lock_timeout_sec * 1000:.0f}ms",
        "statement_timeout": f"{statement_timeout_sec * 1000:.0f}ms",
        "session": session,
        **params,
    }
    # Statements that are sent together are one transaction.
    texts = [sql.render("statements/limit"), sql.render("statements/move"), statement]
    text = ClientCursor(over).mogrify(";\n".join(texts), limits)
    if not over.lock.acquire(timeout=LONGEST_WAIT_SEC):
        return None
    try:
        if not _is_free(over):
            return None
        result = _answer(over, text, statement_timeout_sec + LONGEST_DELAY_SEC)
    finally:
        over.lock.release()
    if result.status != ExecStatus.TUPLES_OK:
        raise error_from_result(result, encoding=over.info.encoding)
    transformer = Transformer(over)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def _is_free(session: psycopg.Connection[Any]) -> bool:
    return (
        not session.closed
        and session.info.transaction_status == TransactionStatus.IDLE
        and session.pgconn.pipeline_status == PipelineStatus.OFF
        # If the server has closed it, its owner has to find out: Django does not connect again
        # where the driver knows that before the first statement.
        and not _is_ready(session, EVENT_READ, 0)
    )


def _is_ready(session: psycopg.Connection[Any], event: int, sec: float) -> bool:
    with DefaultSelector() as selector:
        selector.register(session.fileno(), event)
        return bool(selector.select(max(0.0, sec)))


def _answer(over: psycopg.Connection[Any], text: str, longest_sec: float) -> PGresult:
    """Send statements, and return the result of the last one."""
    ends_at = local_clock() + longest_sec

    def wait(event: int) -> None:
        if not _is_ready(over, event, ends_at - local_clock()):
            over.pgconn.finish()
            raise psycopg.OperationalError("a session of the process does not answer")

    over.pgconn.send_query(text.encode(over.info.encoding))
    while over.pgconn.flush():
        wait(EVENT_WRITE)
    last: PGresult | None = None
    while True:
        while over.pgconn.is_busy():
            wait(EVENT_READ)
            over.pgconn.consume_input()
        result = over.pgconn.get_result()
        if result is None and last is not None:
            return last
        last = result or last


def _start_afresh() -> None:
    """Let a forked child forget the sessions of its parent, which it must not touch."""
    global _lock
    _lock = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_start_afresh)
