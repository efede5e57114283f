"""The record of jobs: a JobEvent for each end of an attempt and each job that the reaper moved."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from jobreaper.models import JobEvent
from jobreaper.redisq import events, signals
from jobreaper.redisq.config import Config
from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.reaper import Reaper
from jobreaper.redisq.worker import Worker
from tests.redisq import handlers
from tests.redisq.places import Places, job, push
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    handlers.reset()
    return Places(client, keys)


@pytest.fixture
def work(make_config: Callable[..., Config], make_document: Any) -> Callable[..., None]:
    """Run a worker until something is so."""

    def run(until_what: Callable[[], Any], **options: Any) -> None:
        section = make_document()["worker"] | {"handler": "tests.redisq.handlers.handle"}
        worker = Worker(make_config(worker=section | options), drain=0.2)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until(until_what)
        finally:
            worker.stop()
            thread.join(30)
            worker.client.close()

    return run


def recorded(job_id: str) -> list[tuple[str | None, dict[str, Any]]]:
    found = JobEvent.objects.filter(job_id=job_id).order_by("id")
    return [(event.type, event.details) for event in found]


def test_a_finished_job(work: Any, places: Places, keys: Keys) -> None:
    push(places.client, keys.queues["high"], job(1, priority="high"))
    work(places.completed)
    [event] = JobEvent.objects.filter(job_id="job-1")
    assert (event.type, event.table) == ("job:finished", keys.queues["high"])
    assert set(event.data) == {"type", "table", "details", "at"}
    details = event.details
    assert details.pop("locked_by")
    assert 0 <= details.pop("duration_ms") < 20_000
    assert details == {"stage": "high", "attempt": 1}


def test_a_job_that_fails_for_good(work: Any, places: Places, keys: Keys) -> None:
    push(places.client, keys.queues["high"], job(1, extra={"do": "fail"}))
    work(places.dead, max_retries=1, backoff={"base": "10ms", "max": "10ms"})
    (first, retried), (second, failed) = recorded("job-1")
    assert (first, second) == ("job:retried", "job:failed")
    assert (retried["attempt"], failed["attempt"]) == (1, 2)
    assert (retried["fail_code"], retried["fail_reason"]) == ("ValueError", "went wrong")
    assert retried["next_earliest_run_at"]
    assert (failed["fail_code"], failed["fail_reason"]) == ("failed", "ValueError: went wrong")


def test_a_job_given_back_and_its_end_that_came_too_late(
    work: Any, places: Places, keys: Keys
) -> None:
    push(places.client, keys.queues["high"], job(1, extra={"do": "wait"}))
    work(lambda: handlers.started, count=1)
    handlers.go_on.set()
    until(lambda: len(recorded("job-1")) == 2)
    (first, _), (second, rejected) = recorded("job-1")
    assert (first, second) == ("job:released", "job:stale_write_rejected")
    assert rejected["verb"] == "finish"


def test_what_the_reaper_moved(places: Places, keys: Keys, config: Config) -> None:
    low = keys.queues["low"]
    lost = job(1, origin_queue=low, priority="low")
    places.client.lpush(
        keys.processing("dead"), lost.encode(), replace(lost, id="used up", retries=3).encode(), "?"
    )
    reaper = Reaper(config)
    reaper.run_pass(hold=False, budget=60)
    reaper.client.close()
    [(kind, details)] = recorded("job-1")
    assert kind == "reaper:requeued"
    assert details == {
        "reason": "lease_expired",
        "locked_by": "dead",
        "stage": "low",
        "attempt": 1,
        "reaper": reaper.name,
    }
    [(kind, details)] = recorded("used up")
    assert kind == "reaper:failed(timeout)"
    assert (details["attempt"], details["fail_code"]) == (4, "worker_lost")
    [event] = JobEvent.objects.filter(job_id__startswith="malformed:")
    assert (event.type, event.table) == ("reaper:failed(poison)", "")
    assert event.details["fail_reason"] == "it is not JSON"


def test_text_that_the_database_cannot_hold(work: Any, places: Places, keys: Keys) -> None:
    strange = {"id": "a\0b", "filepath": "/x", "priority": "\0", "do": "fail"}
    push(places.client, keys.queues["high"], json.dumps(strange).encode())
    work(places.dead, max_retries=0)
    [(kind, details)] = recorded("a\\x00b")
    assert (kind, details["stage"]) == ("job:failed", "\\x00")


def moves(number: int) -> None:
    signals.job_completed.send_robust(
        sender=Worker,
        worker_id="w",
        queue="q",
        job=Job(id=str(number), filepath="/"),
        duration_sec=0.0,
    )


def test_events_wait_for_a_database_that_cannot_be_used(
    sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()
    write = events.write

    def watched(batch: Any) -> bool:
        written = write(batch)
        if not written:
            tried.set()
        return written

    monkeypatch.setattr(events, "AGAIN_SEC", 0.05)
    monkeypatch.setattr(events, "write", watched)
    sql("ALTER TABLE job_events RENAME TO out_of_reach")
    try:
        for number in range(10):
            moves(number)
        assert tried.wait(20)
    finally:
        sql("ALTER TABLE out_of_reach RENAME TO job_events")
    until(lambda: JobEvent.objects.count() == 10)
    ids = JobEvent.objects.order_by("id").values_list("job_id", flat=True)
    assert list(ids) == [str(number) for number in range(10)]


def test_many_events_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = events.write

    def counting(batch: Any) -> bool:
        sizes.append(len(batch))
        return write(batch)

    monkeypatch.setattr(events, "write", counting)
    for number in range(1200):
        moves(number)
    events.recorder.flush()
    assert JobEvent.objects.count() == sum(sizes) == 1200
    assert len(sizes) <= 20
