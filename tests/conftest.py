"""Fixtures for tests that need more than the ORM's own connection."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from hypothesis import settings
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from jobreaper import logs
from jobreaper.protocol import heartbeat, lines
from project.embedded import Postgres
from tests.committed import emptying, transactional_db

__all__ = ["emptying", "transactional_db"]

# The same examples on every run, so that a change is to blame for a failure.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

# A run in the background ignores Ctrl-C, and so would everything that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory for an embedded server. Those of pytest are closed to PostgreSQL's account by
    every other run that begins on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="jobreaper-test-") as path:
        yield Path(path)


@pytest.fixture
def server(open_path: Path) -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, which it may stop."""
    sockets = open_path / "sockets"
    sockets.mkdir()
    server = Postgres(open_path, sockets, durable=False)
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test inherits what others have left in the process: leases to be renewed, and lines that
    their claims found to be long.
    """
    monkeypatch.setattr(lines, "_long", {})
    yield
    heartbeat.heart.remove(*list(heartbeat.heart._leases))


@pytest.fixture(autouse=True, scope="session")
def strict_logs() -> None:
    """A log key outside the list is an error."""
    logs.strict = True


@pytest.fixture
def dsn(transactional_db: None) -> str:
    """The test database as a connection string, for raw connections."""
    # Django's parameters bring its own cursor factory and adapters: a foreign client has neither.
    named = connection.get_connection_params()
    return make_conninfo(
        **{
            key: named[key]
            for key in ("dbname", "user", "password", "host", "port")
            if key in named
        }
    )


@pytest.fixture
def database_url(dsn: str) -> str:
    """The test database as a DATABASE_URL, for processes that a test starts."""
    parts = conninfo_to_dict(dsn)
    return "postgresql:///?" + urlencode(parts, quote_via=quote)


@pytest.fixture
def second_connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Another client of the test database, which commits when it says so."""
    with psycopg.connect(dsn) as other:
        yield other
        other.rollback()


@pytest.fixture
def sql(dsn: str) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Run one statement as a foreign client would; return its rows as dicts."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as client:

        def run(statement: str, *parameters: Any) -> list[dict[str, Any]]:
            cursor = client.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def as_before(transactional_db: None) -> Iterator[None]:
    """Whatever functions and views the test installs, those from before are back afterwards."""
    yield
    # The test's own settings may still be in force.
    with override_settings(JOBREAPER={}):
        call_command("reaper_sql", "--install", stdout=StringIO())
