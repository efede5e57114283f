"""Which errors pass by themselves."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import (
    DataError,
    IntegrityError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from jobreaper import db
from project.media.models import Job
from tests.db.sessions import Sql, end_session, run

pytestmark = pytest.mark.usefixtures("transactional_db")


def error_of(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  any: it is judged by the code
        act()
    return caught.value


def test_a_session_ended_by_the_server_is_transient(sql: Sql) -> None:
    end_session(sql)
    error = error_of(lambda: run("SELECT 1"))
    assert db.is_lost(connection)
    assert db.is_transient(connection, error)


def test_a_server_that_cannot_be_reached_is_transient() -> None:
    unreachable = connection.copy()
    unreachable.settings_dict = {**connection.settings_dict, "HOST": "127.0.0.1", "PORT": "1"}
    error = error_of(unreachable.ensure_connection)
    assert isinstance(error, OperationalError)
    assert db.is_transient(unreachable, error)


def test_a_lock_timeout_is_transient(second_connection: psycopg.Connection[Any]) -> None:
    second_connection.execute("LOCK TABLE jobs")
    error = error_of(lambda: run("SET lock_timeout = '1ms'; TABLE jobs"))
    assert db.is_transient(connection, error)


def test_a_statement_timeout_is_transient_where_it_is_not_our_own() -> None:
    foreign = error_of(lambda: run("SET statement_timeout = '10ms'; SELECT pg_sleep(1)"))
    run("SET statement_timeout = 0")

    def run_too_long() -> None:
        with db.timeouts(connection, lock_sec=1, statement_sec=0.01):
            run("SELECT pg_sleep(1)")

    own = error_of(run_too_long)
    assert [db.is_transient(connection, error) for error in (foreign, own)] == [True, False]


def test_a_serialization_failure_is_transient(
    second_connection: psycopg.Connection[Any], sql: Sql
) -> None:
    job = Job.objects.create()

    def write_from_an_old_snapshot() -> None:
        with transaction.atomic():
            run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            Job.objects.get(pk=job.pk)
            sql("UPDATE jobs SET stage = 'clip'")
            Job.objects.update(stage="asr")

    error = error_of(write_from_an_old_snapshot)
    assert db.is_transient(connection, error)


def test_a_deadlock_is_transient(second_connection: psycopg.Connection[Any]) -> None:
    first, second = Job.objects.create(), Job.objects.create()
    lock = "SELECT FROM jobs WHERE id = %s FOR UPDATE"
    other = threading.Thread(target=second_connection.execute, args=(lock, [first.pk]))
    # The server looks for deadlocks first where it is told to look at once.
    second_connection.execute("SET deadlock_timeout = '1min'")

    def deadlock() -> None:
        with transaction.atomic():
            run("SET LOCAL deadlock_timeout = '10ms'")
            run(f"SELECT FROM jobs WHERE id = {first.pk} FOR UPDATE")
            second_connection.execute(lock, [second.pk])
            other.start()
            run(f"SELECT FROM jobs WHERE id = {second.pk} FOR UPDATE")

    error = error_of(deadlock)
    other.join()
    assert isinstance(error, OperationalError)
    assert "deadlock" in str(error)
    assert db.is_transient(connection, error)


def test_a_read_only_standby_is_transient() -> None:
    def write_on_a_standby() -> None:
        with transaction.atomic():
            run("SET TRANSACTION READ ONLY")
            Job.objects.create()

    error = error_of(write_on_a_standby)
    assert isinstance(error, InternalError)
    assert db.is_transient(connection, error)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT 1 / 0", DataError),
        ("SELECT nothing", ProgrammingError),
        ("INSERT INTO jobs (status) VALUES (NULL)", IntegrityError),
    ],
)
def test_an_error_that_would_come_again_is_not_transient(
    statement: str, kind: type[Exception]
) -> None:
    error = error_of(lambda: run(statement))
    assert isinstance(error, kind)
    assert not db.is_transient(connection, error)
