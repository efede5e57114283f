"""Rows that a statement returns, as instances of a model.

``QuerySet.raw()`` would do, and costs 60 microseconds a row where this costs 20: a claim of many
jobs spends most of its time on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import Buffer, Loader
from psycopg.postgres import types
from psycopg.pq import Format

M = TypeVar("M", bound=models.Model)


def instances(
    connection: BaseDatabaseWrapper, model: type[M], statement: str, params: Mapping[str, Any]
) -> list[tuple[M, tuple[Any, ...]]]:
    """Send a statement that returns the model's columns, in the model's order, and then others;
    return an instance for each row, with the values of the others.
    """
    fields = model._meta.concrete_fields
    names = [field.attname for field in fields]
    with connection.cursor() as cursor:
        _parse_timestamps_once(cursor.adapters)
        cursor.execute(statement, params)
        rows = cursor.fetchall()
    converters = []
    for place, field in enumerate(fields):
        column = field.get_col(model._meta.db_table)
        converters += [
            (place, convert, column)
            for convert in (
                *connection.ops.get_db_converters(column),
                *column.get_db_converters(connection),
            )
        ]
    found = []
    for row in rows:
        values = list(row[: len(names)])
        for place, convert, column in converters:
            values[place] = convert(values[place], column, connection)
        found.append((model.from_db(connection.alias, names, values), row[len(names) :]))
    return found


def _parse_timestamps_once(adapters: Any) -> None:
    """Let a cursor parse equal timestamps once: all that one statement wrote are equal."""
    oid = types["timestamptz"].oid
    adapters.register_loader(oid, _remembering(adapters.get_loader(oid, Format.TEXT)))


@cache
def _remembering(loader: type[Loader]) -> type[Loader]:
    class Remembering(loader):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seen: dict[bytes, Any] = {}

        def load(self, data: Buffer) -> Any:
            text = bytes(data)
            if text not in self.seen:
                self.seen[text] = super().load(data)
            return self.seen[text]

    return Remembering
