"""Transactions of the caller: how deeply they are nested, and which were left open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from jobreaper.db.connection import in_transaction

# Whether it is in atomic(), and the number of nested savepoints.
Depth = tuple[bool, int]

# Replaces the alias of an atomic() that was left open; Django shows it in its error.
ROLLED_BACK: Final = "of an atomic() that was left open and is rolled back"


def open_transactions() -> dict[str, Depth]:
    """Return which of this thread's connections are in a transaction of the caller, by alias, and
    how deeply.
    """
    return {
        connection.alias: _depth(connection)
        for connection in connections.all(initialized_only=True)
        if in_transaction(connection)
    }


def close_left_open(before: Mapping[str, Depth] = MappingProxyType({})) -> list[str]:
    """Roll back transactions on this thread's connections that were started and not ended since
    ``before``, the return value of ``open_transactions()``. Return their aliases. A connection that
    was in no transaction is closed, even if it was only switched out of autocommit.
    """
    undone = []
    for connection in connections.all(initialized_only=True):
        # If the settings say so, every connection is out of autocommit, and always in a
        # transaction.
        if connection.vendor != "postgresql" or not connection.settings_dict["AUTOCOMMIT"]:
            continue
        depth = before.get(connection.alias)
        is_left_open = _depth(connection) > depth if depth else is_open(connection)
        if is_left_open:
            undone.append(connection.alias)
        if depth is None:
            if is_left_open or not connection.autocommit:
                _drop(connection)
        elif is_left_open:
            _roll_back_to(connection, depth)
    return undone


def _depth(connection: BaseDatabaseWrapper) -> Depth:
    return connection.in_atomic_block, len(connection.savepoint_ids)


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction has started on ``connection``, even if Django does not
    know it.
    """
    raw = connection.connection
    return connection.in_atomic_block or (
        raw is not None
        and raw.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
    )


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, even in ``atomic()``, where Django would keep its broken state."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    _disarm(connection.atomic_blocks)
    connection.atomic_blocks.clear()
    connection.needs_rollback = connection.closed_in_transaction = False
    connection.close()


def _roll_back_to(connection: BaseDatabaseWrapper, depth: Depth) -> None:
    """Leave the deeper blocks of ``atomic()``, as an exception would have done."""
    connection.in_atomic_block, kept = depth
    first, *others = connection.savepoint_ids[kept:]
    del connection.savepoint_ids[kept:]
    _disarm(connection.atomic_blocks[-1 - len(others) :])
    del connection.atomic_blocks[-1 - len(others) :]
    # Without its own savepoint, the block was part of the caller's.
    connection.needs_rollback = first is None
    if first is not None:
        try:
            connection.savepoint_rollback(first)
            connection.savepoint_commit(first)
        except Error:
            connection.needs_rollback = True


def _disarm(blocks: Iterable[transaction.Atomic]) -> None:
    """Make blocks raise an error if they are left later, for example when a suspended generator is
    closed. Otherwise they would end whatever transaction the thread has at that time.
    """
    for block in blocks:
        block.using = ROLLED_BACK


def on_commit(connection: BaseDatabaseWrapper, hook: Callable[[], object]) -> None:
    """Call ``hook`` when the caller's transaction commits, or at once if there is none.

    It is also called at once if autocommit is off and there is no ``atomic()``: Django does not see
    such a commit and refuses hooks, and an announcement must not prevent a job from ending.
    """
    if connection.in_atomic_block:
        transaction.on_commit(hook, using=connection.alias, robust=True)
    else:
        hook()
