"""Statements on this thread's connection, and its end."""

from collections.abc import Callable
from typing import Any

from django.db import (
    connection,
)

Sql = Callable[..., list[dict[str, Any]]]


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def show(setting: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {setting}")
        value: str = cursor.fetchone()[0]
    return value


def end_session(sql: Sql) -> None:
    """End this thread's session as a restart of the server would."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    sql("SELECT pg_terminate_backend(%s, 5000)", pid)
