"""Statements as the wrappers of other packages expect them.

``connection.execute_wrapper()`` lets a package change each statement. Some, such as ``ignore()`` of
django-pgtrigger, put a parameter of their own before the others, by position, even if there are
none. Named parameters cannot follow it, and a ``%`` in a statement without parameters is then no
``%`` any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor

_NAMED: Final = re.compile(r"%\((\w+)\)s")


def sent(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any] | list[Any]]:
    """Return the arguments of ``cursor.execute()`` for a statement with named parameters."""
    # With parameters that the server binds, one that occurs twice has one type only by its name.
    if not connection.execute_wrappers or not _merges_parameters(connection):
        return statement, params
    names = _NAMED.findall(statement)
    return by_position(statement), [params[name] for name in names]


def sent_as_it_is(connection: BaseDatabaseWrapper, statement: str) -> tuple[str, list[Any] | None]:
    """Return the arguments of ``cursor.execute()`` for a statement without parameters."""
    if not connection.execute_wrappers:
        return statement, None
    return statement.replace("%", "%%"), []


def by_position(statement: str) -> str:
    """Return a statement as a wrapper sees it, with its parameters by position."""
    return _NAMED.sub("%s", statement)


def _merges_parameters(connection: BaseDatabaseWrapper) -> bool:
    connection.ensure_connection()
    return issubclass(connection.connection.cursor_factory, ClientCursor)
