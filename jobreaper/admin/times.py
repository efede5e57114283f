"""Times that PostgreSQL knows and Python does not, such as 'infinity', as their text.

The driver raises on them, so one such row would take down the list it is in, and nobody could find
it and put it right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from typing import Any, Final

from django.db import connections, models
from django.db.models.query import ModelIterable
from django.utils.timezone import is_aware, localtime
from psycopg import DataError
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Loader as PythonLoader
from psycopg.postgres import types
from psycopg.pq import Format

TYPES: Final = ("timestamptz", "timestamp", "date")


def with_any_time(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Return the queryset made to read a time that Python cannot hold as the text that PostgreSQL
    has for it.
    """
    readable = rows.all()
    readable._iterable_class = _Readable
    return readable


def fields_out_of_range(row: models.Model) -> set[str]:
    """Return the names of the fields that hold such a text in place of a time."""
    return {
        field.name
        for field in row._meta.concrete_fields
        if isinstance(field, models.DateField) and isinstance(row.__dict__.get(field.attname), str)
    }


class _Readable(ModelIterable):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        with connections[self.queryset.db].execute_wrapper(_adapting):
            return iter(list(super().__iter__()))


def _adapting(
    execute: Callable[..., Any], statement: Any, params: Any, many: bool, context: Any
) -> Any:
    adapters = context["cursor"].adapters
    for name in TYPES:
        oid = types[name].oid
        adapters.register_loader(oid, _surviving(adapters.get_loader(oid, Format.TEXT)))
    return execute(statement, params, many, context)


@cache
def _surviving(loader: type[Loader]) -> type[Loader]:
    class Surviving(PythonLoader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._loader = loader(oid, context)

        def load(self, data: Buffer) -> Any:
            try:
                value = self._loader.load(data)
                # A page shows it in the reader's time zone, where the year 10000 may have begun.
                if isinstance(value, datetime) and is_aware(value):
                    localtime(value)
            except (DataError, OverflowError):
                return bytes(data).decode()
            return value

    return Surviving
