"""Values that PostgreSQL can store and Python cannot represent, as text: the time 'infinity', JSON
with thousands of levels, or a number with 5,000 digits in it.

Reading them raises an exception, so one such value would break its list, and nobody could find the
row and correct it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from django.db import models
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler
from django.utils.timezone import is_aware, localtime
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Loader as PythonLoader
from psycopg.postgres import types
from psycopg.pq import Format

# The types with values that Python or Django's pages cannot represent.
TYPES: Final = (
    *("timestamptz", "timestamp", "date", "timetz", "time", "interval"),
    *("numeric", "float8", "float4", "json"),
)

# Levels of JSON. Python reads a few thousand, but writes only a thousand.
MOST_NESTED: Final = 100


class Unread(str):
    """PostgreSQL's text for a value that Python cannot represent."""


def with_any_value(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Return a queryset that can read any value of a column, if necessary as ``Unread``."""
    readable = rows.all()
    kind: Any = type(readable.query)
    readable.query = readable.query.chain(klass=_reading(kind))
    return readable


def unread_fields(row: models.Model) -> set[str]:
    """Return the names of the fields that contain such a text instead of a value."""
    return {
        field.name
        for field in row._meta.concrete_fields
        if isinstance(row.__dict__.get(field.attname), Unread)
    }


def is_too_deep(value: Any) -> bool:
    """Return whether JSON is nested deeper than ``MOST_NESTED`` levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_NESTED):
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for inner in members for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


@cache
def _reading(query: Any) -> type[Query]:
    class Reading(query):  # type: ignore[misc]
        def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
            compiler: Any = super().get_compiler(*args, **kwargs)
            kind: Any = type(compiler)
            compiler.__class__ = _compiling(kind)
            return compiler

    return Reading


@cache
def _compiling(compiler: Any) -> type[SQLCompiler]:
    class Compiling(compiler):  # type: ignore[misc]
        def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
            with self.connection.execute_wrapper(_adapting):
                return super().execute_sql(*args, **kwargs)

        def apply_converters(self, rows: Any, converters: Any) -> Iterator[list[Any]]:
            for row in map(list, rows):
                for place, (convert, expression) in converters.items():
                    row[place] = _converted(row[place], convert, expression, self.connection)
                yield row

    return Compiling


def _converted(raw: Any, converters: list[Any], expression: Any, connection: Any) -> Any:
    if isinstance(raw, Unread):
        return raw
    value = raw
    try:
        for convert in converters:
            value = convert(value, expression, connection)
    # Another package's field may raise anything.
    except Exception:
        return Unread(raw)
    is_json = isinstance(raw, str) and isinstance(value, dict | list)
    if is_json and raw.count("[") + raw.count("{") > MOST_NESTED and is_too_deep(value):
        return Unread(raw)
    return value


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
                # A page shows it in the reader's time zone, where it may already be the year 10000.
                if isinstance(value, datetime) and is_aware(value):
                    localtime(value)
                if isinstance(value, float | Decimal) and not math.isfinite(value):
                    return Unread(bytes(data).decode())
            except Exception:
                return Unread(bytes(data).decode())
            return value

    return Surviving
