"""An empty database for each test, in place of the one that is migrated already."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django import DjangoDbBlocker

from jobreaper.protocol import heartbeat

Sql = Callable[..., list[dict[str, Any]]]
Migrate = Callable[..., None]


@contextmanager
def empty_database(encoding: str | None = None) -> Iterator[None]:
    """A database with nothing in it, which Django takes for its own until the block ends."""
    named = connection.settings_dict
    usual, empty = named["NAME"], f"migrations_{uuid.uuid4().hex}"
    parameters = connection.get_connection_params()
    where = {
        key: parameters[key]
        for key in ("dbname", "user", "password", "host", "port")
        if key in parameters
    }
    with psycopg.connect(**where, autocommit=True) as server:
        how = f" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0" if encoding else ""
        server.execute(f"CREATE DATABASE {empty}{how}")
        connection.close()
        named["NAME"] = empty
        try:
            yield
        finally:
            heartbeat.heart.stop()
            connection.close()
            named["NAME"] = usual
            server.execute(f"DROP DATABASE {empty} WITH (FORCE)")


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock(), empty_database():
        yield


def migrate_to(*target: str) -> None:
    """Run `manage.py migrate` up or down to a migration; without one, all that the job tables and
    the package need.
    """
    for each in [target] if target else [("jobreaper",), ("media",), ("documents",)]:
        call_command("migrate", *each, verbosity=0)


@pytest.fixture
def migrate(transactional_db: None) -> Migrate:
    """What migrates the empty database."""
    return migrate_to
