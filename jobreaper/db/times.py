"""Times that PostgreSQL can store and Python cannot represent, such as 'infinity'.

One such value, which a person may write in psql, must not keep anybody from reading its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import DataError
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Loader as PythonLoader
from psycopg.postgres import types
from psycopg.pq import Format

# A day from the limits, so that the time can be shown in any time zone.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

_OID: Final = types["timestamptz"].oid


def read_any_time(cursor: Any) -> None:
    """Let a cursor read times that Python cannot represent as ``EARLIEST`` or ``LATEST``."""
    adapters = cursor.adapters
    adapters.register_loader(_OID, _within_range(adapters.get_loader(_OID, Format.TEXT)))


@contextmanager
def reading_any_time(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let the ORM read them so in this block."""
    with connection.execute_wrapper(_reading):
        yield


def _reading(execute: Callable[..., Any], *args: Any) -> Any:
    read_any_time(args[-1]["cursor"])
    return execute(*args)


@cache
def _within_range(loader: type[Loader]) -> type[Loader]:
    class WithinRange(PythonLoader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._load = loader(oid, context).load

        def load(self, data: Buffer) -> Any:
            try:
                return self._load(data)
            except DataError:
                text = bytes(data)
                return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST

    return WithinRange
