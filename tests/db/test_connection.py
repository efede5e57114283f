"""Transactions that are seen, and the time limits of one statement."""

from typing import Any

import pytest
from django.db import (
    DataError,
    OperationalError,
    connection,
    transaction,
)

from jobreaper import db
from jobreaper.db import connection as connection_module
from tests.db.sessions import run, show

pytestmark = pytest.mark.usefixtures("transactional_db")


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


@pytest.mark.usefixtures("transactional_db")
def test_a_transaction_that_is_frozen_between_its_statements_is_ended_by_the_server() -> None:
    shown = "SELECT current_setting('idle_in_transaction_session_timeout')"
    [(before,)] = db.fetch(connection, shown, {})
    with db.timeouts(connection, lock_sec=1, statement_sec=1):
        [(within,)] = db.fetch(connection, shown, {})
    with transaction.atomic():
        db.fetch_within(connection, shown, {}, lock_timeout_sec=1, statement_timeout_sec=1)
        [(nested,)] = db.fetch(connection, shown, {})
    assert within == connection_module.IDLE_TIMEOUT
    assert (before, nested) == ("0", "0")
