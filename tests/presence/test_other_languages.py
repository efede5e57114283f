"""Presence through the SQL functions: what a worker says that is not Python."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from jobreaper.presence import statements
from jobreaper.presence.watcher import look, take_back_from_gone
from tests.rows import Rows, Sql
from tests.waiting import until

ME = "host-7:4711:9f3c"
HERE = "SELECT jobreaper_worker_here(%s)"
LEFT = "SELECT jobreaper_worker_left(%s)"

Session = psycopg.Connection[Any]


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    """A session of the worker's."""
    with psycopg.connect(dsn, autocommit=True) as session:
        yield session


def answer(session: Session, call: str, *arguments: object) -> object:
    row = session.execute(call.encode(), arguments).fetchone()
    assert row is not None
    return row[0]


def silent() -> list[str]:
    return [worker.worker for worker in look(connection)[1]]


def held(sql: Sql) -> int:
    """How many sessions hold a worker's lock."""
    [row] = sql("""
        SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE locktype = 'advisory' AND datname = current_database()
    """)
    return int(row["count"])


def test_its_jobs_are_taken_back_when_its_session_is_gone(session: Session, sql: Sql) -> None:
    assert answer(session, "SELECT jobreaper_worker_here(%s, NULL, 2, 'clips')", ME) is True
    [row] = sql("TABLE jobreaper_workers")
    assert (row["kind"], row["host"], row["pid"]) == ("foreign", "host-7", 4711)
    assert (row["leases"], row["runs"], row["is_direct"]) == (2, "clips", True)
    jobs = Rows(sql)
    key = jobs.plant_running(locked_by=ME)
    assert take_back_from_gone(connection) == 0
    session.close()
    assert until(lambda: take_back_from_gone(connection) == 1)
    assert jobs.event_types(key) == ["job:worker_lost"]


def test_it_says_again_that_it_is_here(session: Session, sql: Sql) -> None:
    answer(session, HERE, ME)
    sql("UPDATE jobreaper_workers SET gone_at = now(), silent_since = now(), seen_at = 'epoch'")
    assert answer(session, "SELECT jobreaper_worker_here(%s, leases => 1)", ME) is True
    [row] = sql("SELECT *, seen_at > now() - interval '1 hour' AS seen FROM jobreaper_workers")
    assert (row["leases"], row["gone_at"], row["silent_since"]) == (1, None, None)
    assert row["seen"]
    # Once let go, it is free: it was taken once.
    assert answer(session, LEFT, ME) is True
    assert held(sql) == 0


def test_one_that_leaves_is_seen_no_more(session: Session, sql: Sql) -> None:
    answer(session, HERE, ME)
    assert answer(session, LEFT, ME) is True
    assert silent() == []
    assert sql("TABLE jobreaper_workers") == []
    assert answer(session, LEFT, ME) is False


def test_the_session_of_a_pooler_holds_nothing(session: Session, sql: Sql) -> None:
    """The process id that the client was told is the pooler's."""
    theirs = session.info.backend_pid + 1
    assert answer(session, "SELECT jobreaper_worker_here(%s, %s)", ME, theirs) is None
    assert held(sql) == 0
    [row] = sql("TABLE jobreaper_workers")
    assert row["is_direct"] is False
    ours = session.info.backend_pid
    assert answer(session, "SELECT jobreaper_worker_here(%s, %s)", ME, ours) is True
    assert held(sql) == 1


def test_one_that_is_thought_to_be_gone_waits_until_its_jobs_are_taken_back(
    session: Session, second_connection: Session, sql: Sql
) -> None:
    second_connection.execute(statements.gone().encode(), {"worker": ME})
    assert answer(session, HERE, ME) is False
    assert sql("TABLE jobreaper_workers") == []
    second_connection.rollback()
    assert answer(session, HERE, ME) is True


@pytest.mark.parametrize(
    ("name", "pid"),
    [("anything", 0), ("a:b", 0), (":1:", 1), ("h:99999999999:x", 0), ("[::1]:7:x", 7)],
)
def test_a_worker_may_have_any_name(session: Session, sql: Sql, name: str, pid: int) -> None:
    assert answer(session, HERE, name) is True
    [row] = sql("TABLE jobreaper_workers")
    assert (row["worker"], row["pid"]) == (name, pid)
