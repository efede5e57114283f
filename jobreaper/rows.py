"""Rows that a statement returns, as instances of a model.

``QuerySet.raw()`` would do, and costs 60 microseconds a row where this costs 20: a claim of many
jobs spends most of its time on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import compress
from typing import Any, Final, TypeVar

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelState
from django.db.models.signals import post_init, pre_init
from psycopg import DataError
from psycopg.abc import Buffer, Loader
from psycopg.adapt import Loader as PythonLoader
from psycopg.postgres import types
from psycopg.pq import Format

M = TypeVar("M", bound=models.Model)

_UNREADABLE: Final = object()


def instances(
    connection: BaseDatabaseWrapper,
    model: type[M],
    statement: str,
    params: Mapping[str, Any],
    unmade: Callable[[M, tuple[Any, ...], Exception], object] | None = None,
) -> list[tuple[M, tuple[Any, ...]]]:
    """Send a statement that returns the model's columns, in the model's order, and then others;
    return an instance for each row, with the values of the others.

    A time that Python cannot hold, such as '-infinity', is left out of its instance, as one that
    was deferred: whoever reads it gets the error, and nobody else. The statement may have claimed
    the jobs by now, and one such row must not cost all of them an attempt.

    For the same reason ``unmade`` is called, where it is given, for a row whose instance cannot be
    made, since a field, ``from_db()`` or a receiver raises: with an instance of the bare values,
    with the values of the others and with the error.
    """
    fields = model._meta.concrete_fields
    names = [field.attname for field in fields]
    with connection.cursor() as cursor:
        _adapt(cursor.adapters)
        cursor.execute(statement, params)
        rows = cursor.fetchall()
    converters = _converters(model, connection.alias)
    make = partial(_made_plainly, model) if _is_made_plainly(model) else model.from_db
    found = []
    for row in rows:
        values, others = list(row[: len(names)]), row[len(names) :]
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


# Worked out once: for a single row it would take longer than all the rest.
@cache
def _converters(model: type[models.Model], alias: str) -> list[tuple[int, Any, Any]]:
    """Return what makes Python's value of the database's: the column's place, a function, the
    column.
    """
    connection = connections[alias]
    found = []
    for place, field in enumerate(model._meta.concrete_fields):
        column = field.get_col(model._meta.db_table)
        found += [
            (place, convert, column)
            for convert in (
                *connection.ops.get_db_converters(column),
                *column.get_db_converters(connection),
            )
        ]
    return found


def _is_made_plainly(model: type[models.Model]) -> bool:
    """Return whether ``from_db()`` would do no more than set the fields: nobody has overridden it,
    nobody listens, and no field minds how it is set.
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


def _adapt(adapters: Any) -> None:
    """Let a cursor parse equal times once, since all that one statement wrote are equal, and
    survive those that Python cannot hold.
    """
    for name in ("timestamptz", "timestamp", "date"):
        oid = types[name].oid
        adapters.register_loader(oid, _remembering(adapters.get_loader(oid, Format.TEXT)))


@cache
def _remembering(loader: type[Loader]) -> type[Loader]:
    class Remembering(PythonLoader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._seen = _Seen(loader(oid, context).load)
            # In place of the method, so that no Python code runs for what was seen before.
            self.load = self._seen.__getitem__  # type: ignore[assignment,method-assign]

        def load(self, data: Buffer) -> Any:
            return self._seen[data]

    return Remembering


class _Seen(dict[Buffer, Any]):
    def __init__(self, load: Callable[[Buffer], Any]) -> None:
        self._load = load

    def __missing__(self, data: Buffer) -> Any:
        try:
            value = self._load(data)
        except DataError:
            value = _UNREADABLE
        self[bytes(data)] = value
        return value
