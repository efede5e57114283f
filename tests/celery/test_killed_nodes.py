"""A Celery worker whose whole machine dies: another one notices, long before the leases end."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from django.db import connection

from jobreaper import conf
from jobreaper.presence.watcher import take_back_from_gone
from jobreaper.states import Status
from tests.celery.brokers import broker_url
from tests.celery.workers import (
    AGAIN_SEC,
    Worker,
    await_status,
    celery_workers,
    ready,
    running,
)
from tests.committed import cut_sessions
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def test_its_jobs_run_elsewhere_within_seconds(database_url: str, media: Rows, sql: Sql) -> None:
    with celery_workers(database_url, broker_url("redis")) as start:
        dies, lives = (start("--pool", "prefork", "--concurrency", "1") for _ in range(2))
        ready(dies, lives)
        key = dies.send(media, "wait")
        child = running(media, key)
        # The child says so once its job has run for a moment.
        until(lambda: child in {row["pid"] for row in sql("TABLE jobreaper_workers")})
        seen = sql("TABLE jobreaper_workers")
        assert {row["kind"] for row in seen} == {"celery"}
        assert all("@" in row["runs"] for row in seen if row["pid"] != child)
        os.killpg(dies.child.pid, signal.SIGKILL)
        until(lambda: media.row(key)["attempt_count"] == 2, timeout_sec=AGAIN_SEC)
        assert running(media, key, 2) in lives.children()
        dies.let_go(key)
        await_status(media, key, Status.SUCCESS)
        assert "job:worker_lost" in media.event_types(key)


def freeze(worker: Worker, sql: Sql) -> None:
    os.killpg(worker.child.pid, signal.SIGSTOP)


def cut(worker: Worker, sql: Sql) -> None:
    assert cut_sessions(sql) >= 2


@pytest.mark.parametrize("harm", [freeze, cut])
def test_what_is_no_death_costs_no_job(
    harm: Callable[[Worker, Sql], None], database_url: str, media: Rows, sql: Sql
) -> None:
    with celery_workers(database_url, broker_url("redis")) as start:
        worker = start("--pool", "prefork", "--concurrency", "1")
        ready(worker)
        key = worker.send(media, "wait")
        child = running(media, key)
        until(lambda: child in {row["pid"] for row in sql("TABLE jobreaper_workers")})
        harm(worker, sql)
        ends_at = time.monotonic() + 2 * conf.settings().presence_grace_sec
        while time.monotonic() < ends_at:
            assert take_back_from_gone(connection) == 0
            time.sleep(0.1)
        os.killpg(worker.child.pid, signal.SIGCONT)
        worker.let_go(key)
        await_status(media, key, Status.SUCCESS)
        assert media.event_types(key) == ["job:finished"]
