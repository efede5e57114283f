"""Who looks, how often the others ask, and whom the watcher takes for gone."""

from contextlib import ExitStack

import psycopg
import pytest
from django.db import connection

from jobreaper.identity import worker_id
from jobreaper.presence import here, statements
from jobreaper.presence.watcher import STILL_SEC, Silent, gone, look, pause_sec
from tests.rows import Sql


def ask(session: psycopg.Connection) -> tuple[bool, int]:
    """Return whether the session is the watcher's now, and how many others ask."""
    params = {"backend_pid": session.info.backend_pid, "still_sec": STILL_SEC}
    row = session.execute(statements.elect().encode(), params).fetchone()
    assert row is not None
    return row[0], row[-1]


def test_one_looks_and_those_that_ask_are_counted_once_each(dsn: str) -> None:
    with ExitStack() as stack:
        watcher, *others = [
            stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(4)
        ]
        assert ask(watcher) == (True, 0)
        assert [ask(session) for session in others] == [(False, 1), (False, 2), (False, 3)]
        assert [ask(session) for session in others] == [(False, 4)] * 3
        watcher.execute("SELECT pg_advisory_unlock_all()")
        assert ask(others[0]) == (True, 3)


@pytest.mark.parametrize(
    ("asking", "evenly_sec"), [(0, 1), (1, 1), (4, 1), (20, 5), (1_000, 10), (10_000, 10)]
)
def test_many_ask_less_often_and_not_all_at_once(asking: int, evenly_sec: float) -> None:
    pauses = [pause_sec(asking) for _ in range(200)]
    assert min(pauses) >= 0.75 * evenly_sec
    assert max(pauses) <= 1.25 * evenly_sec
    assert len(set(pauses)) > 1


@pytest.mark.parametrize(
    ("leases", "here", "are_gone"),
    [
        pytest.param([1, 1], 0, True, id="two jobs"),
        pytest.param([0, 0], 0, True, id="two idle workers"),
        pytest.param([2, 1], 0, False, id="three jobs of both workers"),
        pytest.param([2, 1], 1, False, id="three jobs of most workers"),
        pytest.param([2, 1], 2, True, id="three jobs of half of the workers"),
        pytest.param([9], 0, True, id="the jobs of one worker"),
        pytest.param([0, 0, 0], 0, False, id="three idle workers"),
    ],
)
def test_workers_that_vanish_together_have_longer(
    leases: list[int], here: int, are_gone: bool
) -> None:
    silent = [Silent(f"w{n}", "host", count, False, 3.0) for n, count in enumerate(leases)]
    assert gone(here, silent) == (silent if are_gone else [])


def list_worker(sql: Sql, worker: str) -> None:
    sql(
        "INSERT INTO jobreaper_workers (worker, kind, host, pid, version)"
        " VALUES (%s, 'work', 'here', 1, '0')",
        worker,
    )


def silent() -> list[str]:
    return [each.worker for each in look(connection)[1]]


@pytest.mark.usefixtures("transactional_db")
def test_who_looks_on_the_only_session_with_its_lock_is_here(sql: Sql) -> None:
    """The session that holds a lock may take it once more: this is no sign that it is free."""
    list_worker(sql, worker_id())
    assert here.lock(connection)
    try:
        assert silent() == []
    finally:
        connection.close()


@pytest.mark.usefixtures("transactional_db")
def test_a_lock_that_another_watcher_holds_is_no_sign_of_life(
    sql: Sql, second_connection: psycopg.Connection
) -> None:
    list_worker(sql, "dead")
    assert silent() == ["dead"]
    [(is_taken,)] = second_connection.execute(statements.gone().encode(), {"worker": "dead"})
    assert is_taken
    assert silent() == ["dead"]
    second_connection.rollback()
    second_connection.execute(
        statements.lock().encode(),
        {"worker": "dead", "backend_pid": second_connection.info.backend_pid},
    )
    assert silent() == []
    second_connection.rollback()
