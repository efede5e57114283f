"""Statements that are tried again."""

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import (
    DataError,
    OperationalError,
    connection,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from jobreaper import db
from jobreaper.db import retry
from tests.db.sessions import Sql, end_session, run
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between tries."""
    monkeypatch.setattr(retry, "FIRST_RETRY_SEC", 0.0001)


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
@pytest.mark.parametrize("failures", [0, 1, retry.RETRIES])
def test_a_transient_error_is_tried_again(failures: int) -> None:
    sender = Sender(failures, lock_timeout)
    assert db.retrying(connection, sender) == "sent"
    assert sender.told == [False] * (failures + 1)


@pytest.mark.usefixtures("hurry")
def test_trying_again_has_an_end() -> None:
    sender = Sender(retry.RETRIES + 1, lock_timeout)
    with pytest.raises(OperationalError, match="locked"):
        db.retrying(connection, sender)
    assert len(sender.told) == retry.RETRIES + 1


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
        for tries in (retry.RETRIES + 1, 1, 1):
            sender = Sender(99, lock_timeout)
            with pytest.raises(OperationalError, match="locked"):
                db.retrying(connection, sender)
            assert len(sender.told) == tries
    assert len(waits) == retry.RETRIES
    # Outside the block it is another one.
    assert db.retrying(connection, Sender(1, lock_timeout)) == "sent"


def test_what_succeeds_ends_an_outage(waits: list[float]) -> None:
    with db.one_outage():
        for _ in range(3):
            assert db.retrying(connection, Sender(retry.RETRIES, lock_timeout)) == "sent"
    assert len(waits) == 3 * retry.RETRIES


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
    size = retry.RETRIES + 3
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
    assert ended["count"] > retry.RETRIES + 1
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
