"""A database that keeps what is committed, and is emptied again in milliseconds.

Django's own way, which pytest-django takes for the mark `django_db(transaction=True)`, truncates
every table and sends `post_migrate`: that takes a hundred times as long as these few tests' rows
deserve. Tests that change what `post_migrate` makes need it all the same.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connection
from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed, Identifier
from pytest_django import DjangoDbBlocker

from jobreaper.protocol import heartbeat
from tests.rows import Sql

# A test that ends sessions spares those of this name: each package of tests has one.
FOREIGN_CLIENT = "foreign-client"

CUT = """
    SELECT count(pg_terminate_backend(pid)) AS cut
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND pid <> pg_backend_pid()
       AND application_name <> %s
       AND pid <> ALL (%s)
"""

# Their rows are made by `migrate`.
KEPT_APPS = {"contenttypes", "django_celery_beat"}
KEPT_TABLES = {"auth_permission"}


def cut_sessions(sql: Sql) -> int:
    """End every session of the test database but those of the test itself; return how many."""
    connection.ensure_connection()
    return int(sql(CUT, FOREIGN_CLIENT, [connection.connection.info.backend_pid])[0]["cut"])


@pytest.fixture
def transactional_db(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, emptying: Composed
) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            yield
        finally:
            heartbeat.heart.stop()
            # A test may have ended its session.
            connection.close_if_unusable_or_obsolete()
            with connection.cursor() as cursor:
                cursor.execute(emptying)


@pytest.fixture(scope="session")
def emptying(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Composed:
    """What deletes every row that a test can have written."""
    with django_db_blocker.unblock():
        return what_empties()


def what_empties() -> Composed:
    """Return what deletes the rows of every table that is in the database, in one transaction."""
    there = set(connection.introspection.table_names())
    tables = {
        model._meta.db_table
        for config in apps.get_app_configs()
        for model in config.get_models(include_auto_created=True)
        if config.label not in KEPT_APPS
    }
    # The tables need no order then, as no foreign key is looked after.
    fast = "SET LOCAL synchronous_commit = off; SET LOCAL session_replication_role = replica"
    deletes = [
        SQL("DELETE FROM {}").format(Identifier(t)) for t in sorted(tables & there - KEPT_TABLES)
    ]
    return SQL("; ").join([SQL(fast), *deletes])


@pytest.fixture(scope="session")
def foreign_client(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A client of the test database that outlives the tests and waits for no disk."""
    with django_db_blocker.unblock():
        named = connection.get_connection_params()
    # Django's parameters bring its own cursor factory and adapters: a foreign client has neither.
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(
        **{key: named[key] for key in keys if key in named},
        options="-c synchronous_commit=off",
        application_name=FOREIGN_CLIENT,
        autocommit=True,
        row_factory=dict_row,
    ) as client:
        yield client


@pytest.fixture
def sql(transactional_db: None, foreign_client: psycopg.Connection[dict[str, Any]]) -> Sql:
    """Run one statement as a foreign client would; return its rows as dicts."""

    def run(statement: str, *parameters: Any) -> list[dict[str, Any]]:
        cursor = foreign_client.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    return run
