"""Keys of jobs as text: what events and remembered rows have, as PostgreSQL writes it."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from psycopg.sql import SQL

from jobreaper import sql
from jobreaper.db import fetch
from jobreaper.tables import statements
from jobreaper.tables.jobtable import JobTable


def key_as_text(table: JobTable, key: object) -> str:
    """Return the text of a key in events. ``key`` is a statement's parameter, as ``prepare_pk()``
    returns it.

    Raises:
        django.db.Error: it is none of the column's type.
    """
    [(text,)] = _fetch(table, "key_as_text", {"id": key})
    return str(text)


def key_of_text(table: JobTable, text: str) -> Any:
    """Return the Python value of the key that events have as ``text``.

    Raises:
        django.db.Error: no key of the table has this text.
    """
    [row] = _fetch(table, "key_of_text", {"text": text})
    return table.read_pk(*row)


def _fetch(table: JobTable, name: str, params: dict[str, object]) -> list[tuple[Any, ...]]:
    parts = {
        "id_type": SQL(statements.id_type(table)),
        "key_as_read": statements.key_as_read(table, SQL("given.id")),
    }
    connection = table.connection()
    # An error must not break a transaction of the caller.
    with transaction.atomic(using=connection.alias):
        return fetch(connection, sql.render(f"statements/{name}", parts), params)
