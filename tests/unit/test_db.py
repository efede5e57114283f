"""Statements, and the errors that pass by themselves."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
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
from django.db.backends.base.base import BaseDatabaseWrapper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobreaper import db
from project.media.models import Job
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

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


# What fits into a text column.


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("naïve – 木", "naïve – 木"),
        ("a\x00b", "a\\x00b"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        (ValueError("boom"), "boom"),
        (None, "None"),
    ],
)
def test_text_is_stored_readably(text: object, stored: str) -> None:
    assert db.storable(text) == stored


def test_megabytes_of_text_are_cut_and_the_rest_is_counted() -> None:
    text = db.storable("x" * 5_000_000)
    assert text == "x" * 10_000 + "… (4990000 characters cut)"


def test_a_text_of_just_the_longest_length_is_kept() -> None:
    assert db.storable("x" * 10_000) == "x" * 10_000


@given(st.text(st.characters(exclude_categories=())))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_text_postgresql_takes_it_and_gives_it_back(text: str) -> None:
    stored = db.storable(text)
    statement = "SELECT %(text)s::text, jsonb_build_object('text', %(text)s::text) ->> 'text'"
    assert db.fetch(connection, statement, {"text": stored}) == [(stored, stored)]


# Which errors pass by themselves.


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
        ("SET statement_timeout = '1ms'; SELECT pg_sleep(1)", OperationalError),
    ],
)
def test_an_error_that_would_come_again_is_not_transient(
    statement: str, kind: type[Exception]
) -> None:
    error = error_of(lambda: run(statement))
    assert isinstance(error, kind)
    assert not db.is_transient(connection, error)


@pytest.mark.parametrize("statement", ["TABLE no_such_table", "SELECT no_such_column FROM jobs"])
def test_a_database_that_was_not_migrated_is_told_so(statement: str) -> None:
    words = db.in_words(error_of(lambda: run(statement)))
    assert words.endswith(" does not exist: run `manage.py migrate` on this database")


def test_other_errors_are_one_line_in_the_servers_words() -> None:
    assert db.in_words(error_of(lambda: run("SELECT 1 / 0"))) == "division by zero"
    assert db.in_words(OperationalError()) == "OperationalError"


# Trying again.


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between tries."""
    monkeypatch.setattr(db, "FIRST_RETRY_SEC", 0.0001)


class Sender:
    """Fails in the same way a number of times, then succeeds."""

    def __init__(self, failures: int, fail: Callable[[], object]) -> None:
        self.left = failures
        self.fail = fail
        self.told: list[bool] = []

    def __call__(self, may_be_committed: bool) -> str:
        self.told.append(may_be_committed)
        if self.left:
            self.left -= 1
            self.fail()
        run("SELECT 1")
        return "sent"


def lock_timeout() -> None:
    with transaction.atomic():
        run("DO $$ BEGIN RAISE 'locked' USING ERRCODE = 'lock_not_available'; END $$")


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("failures", [0, 1, db.RETRIES])
def test_a_transient_error_is_tried_again(failures: int) -> None:
    sender = Sender(failures, lock_timeout)
    assert db.retrying(connection, sender) == "sent"
    assert sender.told == [False] * (failures + 1)


@pytest.mark.usefixtures("hurry")
def test_trying_again_has_an_end() -> None:
    sender = Sender(db.RETRIES + 1, lock_timeout)
    with pytest.raises(OperationalError, match="locked"):
        db.retrying(connection, sender)
    assert len(sender.told) == db.RETRIES + 1


def test_tries_are_spread_over_as_long_as_a_restart_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with pytest.raises(OperationalError):
        db.retrying(connection, Sender(99, lock_timeout))
    assert waits == sorted(waits)
    assert 4 < sum(waits) < 9


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, none of which is waited."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


def test_an_outage_is_waited_for_once_by_all_the_statements_of_a_block(waits: list[float]) -> None:
    with db.one_outage():
        for tries in (db.RETRIES + 1, 1, 1):
            sender = Sender(99, lock_timeout)
            with pytest.raises(OperationalError, match="locked"):
                db.retrying(connection, sender)
            assert len(sender.told) == tries
    assert len(waits) == db.RETRIES
    # Outside the block it is another one.
    assert db.retrying(connection, Sender(1, lock_timeout)) == "sent"


def test_what_succeeds_ends_an_outage(waits: list[float]) -> None:
    with db.one_outage():
        for _ in range(3):
            assert db.retrying(connection, Sender(db.RETRIES, lock_timeout)) == "sent"
    assert len(waits) == 3 * db.RETRIES


@pytest.mark.usefixtures("hurry")
def test_after_the_last_try_a_lost_connection_is_made_anew(sql: Sql) -> None:

    def lose_the_connection() -> None:
        end_session(sql)
        run("SELECT 1")

    with db.one_outage():
        with pytest.raises(OperationalError):
            db.retrying(connection, Sender(99, lose_the_connection))
        assert db.retrying(connection, Sender(0, lose_the_connection)) == "sent"


@pytest.mark.usefixtures("hurry")
def test_after_a_lost_connection_the_next_try_is_warned_and_has_a_new_one(sql: Sql) -> None:

    def lose_the_connection() -> None:
        end_session(sql)
        run("SELECT 1")

    sender = Sender(1, lose_the_connection)
    assert db.retrying(connection, sender) == "sent"
    assert sender.told == [False, True]


def cut_the_line() -> None:
    """End this thread's connection as a network would, or a proxy in it: without a word."""
    with socket.socket(fileno=os.dup(connection.connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("hurry")
def test_a_connection_that_django_has_replaced_in_the_meantime_was_lost_too() -> None:

    def lose_the_connection() -> None:
        # Outside a transaction when it is left, Django connects anew.
        with transaction.atomic():
            cut_the_line()
            run("SELECT 1")

    sender = Sender(1, lose_the_connection)
    assert db.retrying(connection, sender) == "sent"
    assert sender.told == [False, True]


@pytest.mark.usefixtures("hurry")
def test_a_session_that_the_server_ended_for_being_idle_is_no_reason_to_give_up(sql: Sql) -> None:

    def be_idle() -> None:
        run("SET idle_session_timeout = '1ms'")
        pid = connection.connection.info.backend_pid
        until(lambda: not sql("SELECT FROM pg_stat_activity WHERE pid = %s", pid))
        run("SELECT 1")

    sender = Sender(1, be_idle)
    assert db.retrying(connection, sender) == "sent"
    assert sender.told == [False, True]


@pytest.fixture
def pooled() -> Iterator[BaseDatabaseWrapper]:
    """A connection from a pool with more of them than there are tries."""
    size = db.RETRIES + 3
    wrapper: Any = connection.copy("pooled")
    options = wrapper.settings_dict["OPTIONS"]
    options["pool"] = {"min_size": size, "max_size": size}
    options["application_name"] = "pooled"
    # With them the pool itself finds out, in its own time.
    wrapper.settings_dict["CONN_HEALTH_CHECKS"] = False
    wrapper.pool.open(wait=True, timeout=10)
    yield wrapper
    wrapper.close()
    wrapper.close_pool()


@pytest.mark.usefixtures("hurry")
def test_a_pool_that_has_lost_every_connection_does_not_use_up_the_tries(
    pooled: BaseDatabaseWrapper, sql: Sql
) -> None:
    sessions = "pg_stat_activity WHERE application_name = 'pooled'"
    [ended] = sql(f"SELECT count(pg_terminate_backend(pid, 5000)) FROM {sessions}")
    assert ended["count"] > db.RETRIES + 1
    sent = []

    def send(_: bool) -> list[tuple[Any, ...]]:
        sent.append(_)
        return db.fetch(pooled, "SELECT 1", {})

    assert db.retrying(pooled, send) == [(1,)]
    assert sent == [False, True]


@pytest.mark.usefixtures("hurry")
def test_an_error_that_would_come_again_is_not_tried_again() -> None:
    sender = Sender(1, lambda: run("SELECT 1 / 0"))
    with pytest.raises(DataError):
        db.retrying(connection, sender)
    assert sender.told == [False]


@pytest.mark.usefixtures("hurry")
def test_nothing_is_tried_again_in_a_transaction_of_the_callers() -> None:
    sender = Sender(1, lock_timeout)
    with pytest.raises(OperationalError), transaction.atomic():
        db.retrying(connection, sender)
    assert sender.told == [False]


def test_a_transaction_is_seen_however_it_was_opened() -> None:
    assert not db.in_transaction(connection)
    with transaction.atomic():
        assert db.in_transaction(connection)
    connection.set_autocommit(False)
    assert db.in_transaction(connection)
    connection.rollback()
    connection.set_autocommit(True)
    connection.close()
    assert not db.in_transaction(connection)


# Timeouts of a single statement.

TIMEOUTS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"


def within() -> list[tuple[Any, ...]]:
    return db.fetch_within(connection, TIMEOUTS, {}, lock_timeout_sec=1.5, statement_timeout_sec=20)


def test_timeouts_hold_for_the_statement_and_no_longer() -> None:
    run("SET lock_timeout = '7s'; SET statement_timeout = '8s'")
    assert within() == [("1500ms", "20s")]
    assert (show("lock_timeout"), show("statement_timeout")) == ("7s", "8s")


def test_timeouts_are_put_back_in_a_transaction_of_the_callers() -> None:
    with transaction.atomic():
        run("SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '8s'")
        assert within() == [("1500ms", "20s")]
        assert (show("lock_timeout"), show("statement_timeout")) == ("7s", "8s")
    assert (show("lock_timeout"), show("statement_timeout")) == ("0", "0")


def test_timeouts_are_put_back_after_an_error_in_a_transaction_of_the_callers() -> None:
    with transaction.atomic():
        run("SET LOCAL lock_timeout = '7s'")
        with pytest.raises(DataError):
            db.fetch_within(
                connection, "SELECT 1 / 0", {}, lock_timeout_sec=1, statement_timeout_sec=1
            )
        assert show("lock_timeout") == "7s"


def test_a_statement_that_takes_too_long_is_cancelled() -> None:
    with pytest.raises(OperationalError, match="statement timeout"):
        db.fetch_within(
            connection, "SELECT pg_sleep(9)", {}, lock_timeout_sec=1, statement_timeout_sec=0.01
        )


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_frozen_between_its_statements_is_ended_by_the_server() -> None:
    shown = "SELECT current_setting('idle_in_transaction_session_timeout')"
    [(before,)] = db.fetch(connection, shown, {})
    [(within,)] = db.fetch_within(
        connection, shown, {}, lock_timeout_sec=1, statement_timeout_sec=1
    )
    with transaction.atomic():
        db.fetch_within(connection, shown, {}, lock_timeout_sec=1, statement_timeout_sec=1)
        [(nested,)] = db.fetch(connection, shown, {})
    assert within == db.IDLE_TIMEOUT
    assert (before, nested) == ("0", "0")
