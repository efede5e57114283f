"""A claim that an exception breaks off, such as a time limit's, and the server carries out."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from jobreaper import claim, claim_next, signals
from jobreaper.states import EventType, Status
from project.media.models import Job
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


class TooSlow(Exception):
    pass


@pytest.fixture
def strike(sql: Sql) -> Iterator[Callable[..., None]]:
    """Return a function that has this thread struck by an exception once a query says so; Celery
    raises its soft time limit from a signal's handler too.
    """
    before = signal.getsignal(signal.SIGUSR1)
    strikers: list[threading.Thread] = []

    def when(condition: str, error: BaseException) -> None:
        def handle(*_: Any) -> None:
            raise error

        def strike(thread: int) -> None:
            until(lambda: sql(condition))
            signal.pthread_kill(thread, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handle)
        strikers.append(threading.Thread(target=strike, args=(threading.get_ident(),)))
        strikers[-1].start()

    yield when
    for striker in strikers:
        striker.join()
    signal.signal(signal.SIGUSR1, before)


# The server may serve other tests too.
HERE = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"


@pytest.fixture(params=[lambda key: claim(Job, key), lambda key: claim_next(Job)])
def claims(request: pytest.FixtureRequest) -> Any:
    return request.param


def is_idle(sql: Sql) -> bool:
    """Return whether the server is done with every statement."""
    return not sql(f"{HERE} AND pid <> pg_backend_pid() AND state = 'active'")


def test_a_claim_that_waits_for_a_locked_table_is_not_carried_out_afterwards(
    claims: Any,
    jobs: Rows,
    sql: Sql,
    second_connection: psycopg.Connection[Any],
    strike: Callable[..., None],
) -> None:
    key = jobs.plant()
    second_connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
    letting_go = threading.Timer(1, second_connection.rollback)
    letting_go.start()
    strike(f"{HERE} AND wait_event_type = 'Lock'", TooSlow())
    with pytest.raises(TooSlow):
        claims(key)
    letting_go.join()
    until(lambda: is_idle(sql))
    row = jobs.row(key)
    assert (row["status"], row["locked_by"]) == (Status.QUEUED, None)


@pytest.fixture
def slow_claims(sql: Sql) -> Iterator[None]:
    """Each claim takes a second in its trigger, which nothing cancels, and is then committed."""
    sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END;"
        " RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER dawdle BEFORE UPDATE ON jobs FOR EACH ROW"
        " WHEN (NEW.status = 'processing') EXECUTE FUNCTION dawdle()"
    )
    yield
    sql("DROP FUNCTION dawdle CASCADE")


@pytest.mark.usefixtures("slow_claims")
@pytest.mark.parametrize(
    ("error", "event", "attempts"),
    [
        (TooSlow("in the claim"), EventType.JOB_RETRIED, 1),
        (KeyboardInterrupt(), EventType.JOB_RELEASED, 0),
    ],
    ids=repr,
)
def test_what_the_server_claimed_all_the_same_is_given_back(
    error: BaseException,
    event: str,
    attempts: int,
    claims: Any,
    jobs: Rows,
    strike: Callable[..., None],
) -> None:
    key = jobs.plant()
    strike(f"{HERE} AND wait_event = 'PgSleep'", error)
    with pytest.raises(type(error)):
        claims(key)
    row = jobs.row(key)
    assert (row["status"], row["attempt_count"]) == (Status.QUEUED, attempts)
    assert jobs.event_types(key) == [event]


def test_nothing_is_waited_for_when_the_answer_was_there_already(
    claims: Any, jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*args: Any) -> Any:
        monkeypatch.delattr(Job, "from_db")
        raise KeyboardInterrupt

    key = jobs.plant()
    monkeypatch.setattr(Job, "from_db", classmethod(strike), raising=False)
    # Longer than a test may take.
    monkeypatch.setattr("jobreaper.protocol.claim.LOCK_TIMEOUT_SEC", 3600.0)
    with pytest.raises(KeyboardInterrupt):
        claims(key)
    assert jobs.row(key)["status"] == Status.QUEUED
    assert jobs.event_types(key) == [EventType.JOB_RELEASED]


def test_a_receiver_that_exits_leaves_no_job_behind(claims: Any, jobs: Rows) -> None:
    def leave(**kwargs: Any) -> None:
        raise SystemExit

    key = jobs.plant()
    signals.job_claimed.connect(leave)
    try:
        with pytest.raises(SystemExit):
            claims(key)
    finally:
        signals.job_claimed.disconnect(leave)
    assert jobs.row(key)["status"] == Status.QUEUED
    assert jobs.event_types(key) == [EventType.JOB_RELEASED]
