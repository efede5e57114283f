"""Rows that a statement returns, as instances of a model.

``QuerySet.raw()`` would work too, but takes 60 microseconds per row instead of 20, which would be
most of the time of a claim of many jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import compress
from typing import Any, Final, TypeVar

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.psycopg_any import BaseTzLoader
from django.db.models.base import ModelState
from django.db.models.signals import post_init, pre_init
from psycopg import DataError
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Loader as PythonLoader
from psycopg.postgres import types
from psycopg.pq import Format

from jobreaper.db import converters, rows_of, write_as_read
from jobreaper.tables.shape import table_fields

M = TypeVar("M", bound=models.Model)

_UNREADABLE: Final = object()

# A cursor may be kept for many statements.
MOST_SEEN: Final = 1000


def instances(
    connection: BaseDatabaseWrapper,
    model: type[M],
    statement: str,
    params: Mapping[str, Any],
    unmade: Callable[[M, tuple[Any, ...], Exception], object] | None = None,
    without_job: Callable[[tuple[Any, ...]], object] | None = None,
) -> list[tuple[M, tuple[Any, ...]]]:
    """Send a statement that returns the model's columns, in the model's order, and then others;
    return an instance for each row, with the values of the others.

    A time that Python cannot represent, such as '-infinity', becomes a deferred field of its
    instance, so that only code that reads it gets the error. The statement may have claimed the
    jobs already, and one such row must not cost all of them an attempt.

    For the same reason, ``unmade``, if given, is called for a row whose instance cannot be created
    because a field, ``from_db()`` or a receiver raises. Its arguments are an instance with the bare
    values, the values of the other columns, and the error.

    ``without_job``, if given, is called for a row without a key, with the values of the others.
    """
    names = [field.attname for field in table_fields(model)]
    key = None if without_job is None else names.index(model._meta.pk.attname)
    connection.ensure_connection()
    # A handler may have changed it.
    write_as_read(connection)
    rows = rows_of(connection, statement, params, _adapt)
    converters = _converters(model, connection.alias)
    make = partial(_made_plainly, model) if _is_made_plainly(model) else model.from_db
    found = []
    for row in rows:
        values, others = list(row[: len(names)]), row[len(names) :]
        if without_job is not None and key is not None and values[key] is None:
            without_job(others)
            continue
        try:
            for place, convert, column in converters:
                values[place] = convert(values[place], column, connection)
            if _UNREADABLE in values:
                made = make(connection.alias, *_readable(names, values))
            else:
                made = make(connection.alias, names, values)
        except Exception as error:
            if unmade is None:
                raise
            bare = _made_plainly(model, connection.alias, *_readable(names, row[: len(names)]))
            unmade(bare, others, error)
        else:
            found.append((made, others))
    return found


def _readable(names: list[str], values: Sequence[Any]) -> tuple[list[str], list[Any]]:
    read = [value is not _UNREADABLE for value in values]
    return list(compress(names, read)), list(compress(values, read))


# Computed once: for a single row, it would take longer than everything else.
@cache
def _converters(model: type[models.Model], alias: str) -> list[tuple[int, Any, Any]]:
    """Return what converts the database's values to Python's: the column's index, a function, the
    column.
    """
    return [
        (place, convert, column)
        for place, field in enumerate(table_fields(model))
        for convert, column in converters(connections[alias], field)
    ]


def _is_made_plainly(model: type[models.Model]) -> bool:
    """Return whether ``from_db()`` would only set the fields: it is not overridden, there are no
    receivers, and every field can be set directly.
    """
    return (
        model.__init__ is models.Model.__init__
        and model.from_db.__func__ is models.Model.from_db.__func__  # type: ignore[attr-defined]
        and not _minds_setting(model)
        and not any(signal.has_listeners(model) for signal in (pre_init, post_init))
    )


@cache
def _minds_setting(model: type[models.Model]) -> bool:
    return any(
        hasattr(getattr(model, field.attname), "__set__") for field in model._meta.concrete_fields
    )


def _made_plainly(model: type[M], alias: str, names: list[str], values: list[Any]) -> M:
    made = model.__new__(model)
    made._state = ModelState()
    made._state.adding = False
    made._state.db = alias
    made.__dict__.update(zip(names, values, strict=True))
    return made


def _adapt(cursor: Any) -> None:
    """Make a cursor parse equal times only once, because all times that one statement wrote are
    equal, and accept times that Python cannot represent.
    """
    adapters = cursor.adapters
    for name in ("timestamptz", "timestamp", "date"):
        oid = types[name].oid
        adapters.register_loader(oid, _remembering(adapters.get_loader(oid, Format.TEXT)))


@cache
def _remembering(loader: type[Loader]) -> type[Loader]:
    class Remembering(PythonLoader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._seen = _Seen(_faster(loader(oid, context)))
            # This replaces the method, so that no Python code runs for a value that was seen
            # before.
            self.load = self._seen.__getitem__  # type: ignore[assignment,method-assign]

        def load(self, data: Buffer) -> Any:
            return self._seen[data]

    return Remembering


def _faster(loader: Loader) -> Callable[[Buffer], Any]:
    """Return what loads as ``loader`` does. Django's loader of times is Python code, and takes ten
    times as long as Python's own parser, which reads any time of PostgreSQL's that Python has.
    """
    is_djangos = getattr(type(loader), "load", None) is BaseTzLoader.load
    timezone = getattr(loader, "timezone", None)
    if not is_djangos or timezone is None:
        return loader.load

    def load(data: Buffer) -> Any:
        try:
            return datetime.fromisoformat(str(data, "ascii")).astimezone(timezone)
        except (ValueError, OverflowError):
            return loader.load(data)

    return load


class _Seen(dict[Buffer, Any]):
    def __init__(self, load: Callable[[Buffer], Any]) -> None:
        self._load = load

    def __missing__(self, data: Buffer) -> Any:
        if len(self) >= MOST_SEEN:
            self.clear()
        try:
            value = self._load(data)
        except DataError:
            value = _UNREADABLE
        self[bytes(data)] = value
        return value
