"""What a DBA may set on a role or a database."""

from collections.abc import Callable, Iterator

import pytest
from django.db import connection, connections
from psycopg import sql as psql

from tests.rows import Sql

Limit = Callable[[str, str], None]

# None of these may keep a verb, a pass or a migration from its work.
SETTINGS = [
    ("statement_timeout", "1s"),
    ("lock_timeout", "1s"),
    ("idle_session_timeout", "200ms"),
    ("idle_in_transaction_session_timeout", "200ms"),
    ("transaction_timeout", "1s"),
    ("default_transaction_isolation", "repeatable read"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "off"),
    ("session_replication_role", "replica"),
    ("DateStyle", "German, DMY"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "Asia/Kathmandu"),
    ("bytea_output", "escape"),
    ("xmloption", "document"),
    ("extra_float_digits", "0"),
    ("client_encoding", "LATIN1"),
    ("client_min_messages", "error"),
    ("standard_conforming_strings", "off"),
    ("quote_all_identifiers", "on"),
    ("row_security", "off"),
    ("check_function_bodies", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "on"),
]
# Django sets these for each of its sessions, or jobreaper does.
OF_SESSIONS = {
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, DMY",
    "IntervalStyle": "postgres",
}


@pytest.fixture
def limit(sql: Sql) -> Iterator[Limit]:
    """Set something on the role, for sessions that begin from now on."""
    done: list[str] = []
    # Others of the cluster are other tests'.
    database = psql.Identifier(connection.settings_dict["NAME"])

    def set_on_role(name: str, value: str) -> None:
        if not sql("SELECT 1 FROM pg_settings WHERE name = %s", name):
            pytest.skip(f"this PostgreSQL has no {name}")
        quoted = psql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} SET {} = {}").format(
            database, psql.Identifier(name), psql.Literal(value)
        )
        sql(quoted.as_string(None))
        done.append(name)
        connections.close_all()
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone() == (OF_SESSIONS.get(name, value),)

    yield set_on_role
    for name in done:
        reset = psql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} RESET {}")
        sql(reset.format(database, psql.Identifier(name)).as_string(None))
    connections.close_all()
