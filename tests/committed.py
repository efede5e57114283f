"""A database that keeps what is committed, and is emptied again in milliseconds.

pytest-django's own `transactional_db` truncates every table after each test, which takes a hundred
times as long as these few tests' rows deserve. A package of tests that wants this one imports it in
its conftest.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.rows import dict_row
from pytest_django import DjangoDbBlocker

from jobreaper import heartbeat
from tests.rows import Sql

# A test that ends sessions spares those of this name: each package of tests has one.
FOREIGN_CLIENT = "foreign-client"

TABLES = (
    "jobs",
    "asr_jobs",
    "executor_jobs",
    "jobreaper_jobs",
    "jobreaper_pauses",
    "job_events",
    "jobreaper_passes",
    "jobreaper_totals",
    "jobreaper_stages",
    "executor_jobs",
)


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            yield
        finally:
            heartbeat.heart.stop()
            # A test may have ended its session.
            connection.close_if_unusable_or_obsolete()
            with connection.cursor() as cursor:
                cursor.execute(
                    "; ".join(
                        ["SET LOCAL synchronous_commit = off"]
                        + [f"DELETE FROM {table}" for table in TABLES]
                    )
                )


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
