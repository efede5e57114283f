"""Children that end in the ordinary way, those whose death only Celery can tell, and those that
keep their connections.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from jobreaper.states import EventType, Status
from tests.celery.brokers import broker_url
from tests.celery.workers import Worker, await_status, celery_workers, ready, running
from tests.rows import Rows

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture(scope="module")
def workers(database_url: str) -> Iterator[dict[str, Worker]]:
    """Two workers, started at once."""
    with celery_workers(database_url, broker_url("redis")) as start:
        prefork = ("--pool", "prefork", "--concurrency", "1")
        workers = {
            "recycling": start(*prefork, "--max-tasks-per-child", "2"),
            "without pidfd": start(*prefork, NO_PIDFD="1", DB_REUSE_MAX="1000"),
        }
        ready(*workers.values())
        yield workers


def test_a_child_that_is_replaced_between_two_jobs_has_lost_none(
    workers: dict[str, Worker], media: Rows
) -> None:
    worker = workers["recycling"]
    keys = [worker.send(media, "write_names") for _ in range(6)]
    rows = [await_status(media, key, Status.SUCCESS) for key in keys]
    assert len({row["payload"]["names"]["pid"] for row in rows}) == 3
    assert {row["attempt_count"] for row in rows} == {1}
    assert {tuple(media.event_types(key)) for key in keys} == {(EventType.JOB_FINISHED,)}


def test_without_a_pidfd_celerys_word_of_a_dead_child_gives_the_job_back(
    workers: dict[str, Worker], media: Rows
) -> None:
    """WorkerLostError."""
    worker = workers["without pidfd"]
    key = worker.send(media, "wait")
    os.kill(running(media, key), signal.SIGKILL)
    running(media, key, attempt=2)
    [event] = media.events(key)
    assert event["type"] == EventType.JOB_WORKER_LOST
    assert event["details"]["how"] == "signal 9 (SIGKILL)"
    assert media.row(key)["reap_count"] == 1
    worker.let_go(key)
    await_status(media, key, Status.SUCCESS)


def test_a_kept_connection_that_was_ended_meanwhile_costs_no_job(
    workers: dict[str, Worker], media: Rows
) -> None:
    """celery#4878: nothing looks whether it still stands."""
    worker = workers["without pidfd"]
    for _ in range(3):
        key = worker.send(media, "write_names")
        assert await_status(media, key, Status.SUCCESS)["attempt_count"] == 1
        assert media.event_types(key) == [EventType.JOB_FINISHED]
        ended = media.sql(
            "SELECT pg_terminate_backend(pid, 5000) AS ended FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'child'"
        )
        assert ended == [{"ended": True}]
