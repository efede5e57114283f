"""A role whose connections are few: what a worker claims, and how it renews what it has."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.utils import OperationalError

from jobreaper import NotClaimed, claim, enqueue, hold, job_handler
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.queue.worker import Worker
from jobreaper.states import Status
from tests.limited_role import ROLE, SESSIONS, Limit, limited_role
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def limit(sql: Sql, settings: Any) -> Iterator[Limit]:
    """Let this process connect as a role with a limit, and set that."""
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.2, "DEFAULT_LEASE_SEC": 20}
    with limited_role(sql) as set_limit:
        before = connections.settings["default"]["USER"]
        connections.close_all()
        connections.settings["default"]["USER"] = ROLE
        yield set_limit
        heartbeat.heart.stop()
        connections.settings["default"]["USER"] = before
        connections.close_all()


@pytest.fixture
def working(limit: Limit) -> Iterator[Callable[[], Worker]]:
    """Start a worker that does not listen; it is told to stop when the test ends."""
    started: list[tuple[Worker, threading.Thread]] = []

    def start() -> Worker:
        worker = Worker(poll_sec=0.1, listen=False)

        def run() -> None:
            try:
                worker.run()
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        started.append((worker, thread))
        return worker

    yield start
    limit(-1)
    for worker, thread in started:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_worker_that_cannot_beat_claims_nothing_and_says_why(
    limit: Limit,
    working: Callable[[], Worker],
    jobs: Rows,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job_handler("light")(lambda job, lease: None)
    key = enqueue("light").pk
    connections.close_all()
    limit(1)
    worker = working()
    until(lambda: "heartbeats have no connection to default" in caplog.text)
    until(lambda: len(sql(SESSIONS, ROLE)) == 1)
    assert "too many connections for role" in caplog.text
    assert jobs.row(key)["status"] == Status.QUEUED
    limit(-1)
    until(lambda: worker.tally.succeeded == 1)
    assert caplog.text.count("heartbeats have no connection") == 1


def test_a_running_job_is_renewed_over_the_workers_own_connection(
    limit: Limit,
    working: Callable[[], Worker],
    jobs: Rows,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()
    job_handler("slow")(lambda job, lease: go_on.wait(20) and None)
    key = enqueue("slow").pk
    connections.close_all()
    worker = working()
    until(lambda: jobs.row(key)["status"] == Status.PROCESSING)
    limit(1)
    until(lambda: jobs.row(key)["last_heartbeat_at"] > jobs.row(key)["claimed_at"])
    assert len(sql(SESSIONS, ROLE)) == 2
    for pid in until(lambda: heart_sessions(sql)):
        sql("SELECT pg_terminate_backend(%s, 5000)", pid)
    until(lambda: "heartbeats have no connection" in caplog.text)
    for _ in range(3):
        before = jobs.row(key)["last_heartbeat_at"]
        until(lambda before=before: jobs.row(key)["last_heartbeat_at"] > before)  # type: ignore[misc]
    assert len(sql(SESSIONS, ROLE)) == 1
    go_on.set()
    until(lambda: worker.tally.succeeded == 1)
    assert jobs.row(key)["attempt_count"] == 1


def heart_sessions(sql: Sql) -> list[int]:
    """The sessions whose last statement was a beat, which is sent together with its limits."""
    rows = sql(SESSIONS + " AND query LIKE 'SELECT set_config(''lock_timeout''%%'", ROLE)
    return [row["pid"] for row in rows]


def test_after_such_trouble_no_process_claims_before_it_can_beat_again(
    limit: Limit, jobs: Rows, sql: Sql
) -> None:
    first, second = enqueue("any").pk, enqueue("any").pk
    lease = claim(Job, first)
    assert lease is not None
    limit(1)
    with lease:
        until(lambda: heartbeat.heart.obstacle("default") is not None)
        assert isinstance(heartbeat.heart.obstacle("default"), OperationalError)
        assert claim(Job, second) is None
        limit(-1)
        assert claim(Job, second) is not None


LEASE_SEC = 1.5


@contextmanager
def pooled(size: int) -> Iterator[None]:
    """Let Django's connections come from a pool, and the pool be gone afterwards."""
    options = connections.settings["default"]["OPTIONS"]
    options["pool"] = {"min_size": size, "max_size": size, "timeout": 1}
    try:
        yield
    finally:
        connections["default"].close_pool()  # type: ignore[attr-defined]
        del options["pool"]


@pytest.mark.parametrize("when", ["at the start", "in mid-run"])
@pytest.mark.parametrize("pool", [False, True])
def test_a_held_lease_is_renewed_over_the_connection_of_its_claim(
    limit: Limit,
    jobs: Rows,
    sql: Sql,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    when: str,
    pool: bool,
) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SEC": 0.1, "DEFAULT_LEASE_SEC": LEASE_SEC}
    key = enqueue("any").pk
    connections.close_all()
    with pooled(1) if pool else nullcontext():
        if when == "at the start":
            limit(1)
        with hold(Job, key) as lease:
            if when == "in mid-run":
                until(lambda: len(sql(SESSIONS, ROLE)) == 2)
                until(lambda: jobs.row(key)["last_heartbeat_at"] > jobs.row(key)["claimed_at"])
                limit(1)
                own = connections["default"].connection.info.backend_pid
                for row in sql(SESSIONS + " AND pid <> %s", ROLE, own):
                    sql("SELECT pg_terminate_backend(%s, 5000)", row["pid"])
            until(lambda: "heartbeats have no connection to default" in caplog.text)
            began = jobs.now()
            until(lambda: (jobs.now() - began).total_seconds() > 2 * LEASE_SEC)
            lease.check()
            assert len(sql(SESSIONS, ROLE)) == 1
            other = enqueue("other").pk
            without_beats = pytest.raises(NotClaimed, match=r"heartbeats have no .*many")
            with without_beats, hold(Job, other):
                pass
    assert jobs.row(key)["status"] == Status.SUCCESS
    assert "too many connections for role" in caplog.text


def test_the_work_s_own_transaction_is_left_alone(
    limit: Limit, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat in it would be committed with it, hours later."""
    key = enqueue("any").pk
    connections.close_all()
    limit(1)
    with hold(Job, key) as lease:
        with transaction.atomic(), connections["default"].cursor() as cursor:
            cursor.execute("SELECT txid_current(), current_setting('lock_timeout')")
            before = cursor.fetchone()
            until(lambda: caplog.text.count("heartbeat_failed") >= 2)
            cursor.execute("SELECT txid_current(), current_setting('lock_timeout')")
            assert cursor.fetchone() == before
            beaten = jobs.row(key)["last_heartbeat_at"]
        until(lambda: jobs.row(key)["last_heartbeat_at"] > beaten)
        lease.check()
