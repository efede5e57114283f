"""A worker in this process: how the jobs that it runs end."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction

from jobreaper import cancel, enqueue, enqueue_many, job_handler, pause, signals
from jobreaper.models import Job
from jobreaper.protocol import heartbeat
from jobreaper.queue.runs import Tally, run_due
from jobreaper.queue.worker import Worker
from tests.queue.working import once, take
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize("n", [1, 2, 700])
def test_what_is_due_is_run_once_and_finished(n: int, jobs: Rows) -> None:
    made = enqueue_many(({"payload": {"n": i}} for i in range(n)), type="idle").ids
    assert once(batch=100) == Tally(claimed=n, succeeded=n)
    rows = jobs.all()
    assert {row["status"] for row in rows.values()} == {"success"}
    assert {(row["attempt_count"], row["locked_by"]) for row in rows.values()} == {(1, None)}
    [events] = jobs.sql(
        "SELECT count(*), count(DISTINCT job_id) AS jobs FROM job_events"
        " WHERE type = 'job:finished'"
    )
    assert events == {"count": n, "jobs": n}
    assert jobs.event_types(made[0]) == ["job:enqueued", "job:finished"]


def test_a_handler_that_raises_fails_its_own_job_and_no_other(
    jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("odd")
    def odd(job: Any, lease: Any) -> None:
        if job.payload["n"] % 2:
            raise ValueError(f"{job.payload['n']} is odd")

    made = enqueue_many(({"payload": {"n": n}} for n in range(6)), type="odd", max_attempts=1).ids
    assert once() == Tally(claimed=6, succeeded=3, failed=3)
    row = jobs.row(made[3])
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "failed",
        "ValueError",
        "3 is odd",
    )
    told = [record for record in caplog.records if record.name == "jobreaper.runs"]
    assert len(told) == 3
    assert all(record.exc_info for record in told)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("odd")])
def test_a_handler_that_exits_fails_its_job_and_does_not_end_the_worker(
    error: BaseException, jobs: Rows
) -> None:
    @job_handler("exits")
    def exits(job: Any, lease: Any) -> None:
        raise error

    job, other = enqueue("exits", max_attempts=1), enqueue("idle")
    assert once() == Tally(claimed=2, succeeded=1, failed=1)
    assert jobs.row(job.pk)["fail_code"] == type(error).__name__
    assert jobs.row(other.pk)["status"] == "success"


@pytest.mark.parametrize("run_all", [once, lambda: run_due(4, 60)])
@pytest.mark.parametrize("moment", [signals.run_started, signals.run_ended])
def test_a_receiver_that_exits_fails_the_job_and_does_not_end_the_worker(
    moment: Any, run_all: Any, jobs: Rows
) -> None:
    def exits(lease: Any, **_: Any) -> None:
        if lease.pk == job.pk:
            raise SystemExit

    job, others = enqueue("idle", max_attempts=1), enqueue_many([{}] * 3, type="idle").ids
    moment.connect(exits)
    try:
        assert run_all() == Tally(claimed=4, succeeded=3, failed=1)
    finally:
        moment.disconnect(exits)
    assert jobs.row(job.pk)["fail_code"] == "SystemExit"
    assert {jobs.row(pk)["status"] for pk in others} == {"success"}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_whose_thread_ends_gives_back_what_it_holds_and_ends_with_an_error(
    concurrency: int, jobs: Rows
) -> None:
    def fail_to_close() -> None:
        raise MemoryError

    @job_handler("breaks")
    def break_thread(job: Any, lease: Any) -> None:
        connections["default"].close_if_unusable_or_obsolete = fail_to_close  # type: ignore
        raise ValueError

    enqueue_many([{}] * 300, type="idle")
    broken = enqueue("breaks", max_attempts=1)
    enqueue_many([{}] * 300, type="idle")
    worker = Worker(concurrency=concurrency)
    with pytest.raises(RuntimeError, match="a thread that ran handlers has ended"):
        worker.run()
    assert jobs.row(broken.pk)["fail_code"] == "ValueError"
    assert not jobs.sql("SELECT 1 FROM jobreaper_jobs WHERE status = 'processing'")
    assert not heartbeat.heart._leases


class TakenMeanwhile(deque[Any]):
    """Empty as soon as it was looked at, as where another thread ends the same jobs."""

    def __len__(self) -> int:
        length = super().__len__()
        self.clear()
        return length


def test_jobs_that_another_thread_takes_meanwhile_are_ended_by_that_one() -> None:
    enqueue("idle")
    worker = Worker(batch=1)
    worker._lanes[0].hand._done = TakenMeanwhile(take(1))
    worker._lanes[0].end_group()
    assert worker.tally == Tally()


async def never_iterated(job: Any, lease: Any) -> Any:
    yield


def never_begun(job: Any, lease: Any) -> Iterator[None]:
    yield


class Awaitable:
    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (never_iterated, "is async"),
        (lambda job, lease: Awaitable(), "is async"),
        (never_begun, "has a yield"),
    ],
)
def test_a_handler_that_has_not_run_does_not_count_as_done(
    handler: Any, why: str, jobs: Rows
) -> None:
    job_handler("unrun")(handler)
    job = enqueue("unrun", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    assert f"did not run: it {why}" in jobs.row(job.pk)["fail_reason"]


def test_a_handler_may_finish_in_its_own_transaction(jobs: Rows) -> None:
    @job_handler("exact")
    def exact(job: Any, lease: Any) -> None:
        with transaction.atomic():
            Job.objects.filter(pk=job.pk).update(org_id="written")
            lease.finish()

    job = enqueue("exact")
    assert once() == Tally(claimed=1, succeeded=1)
    row = jobs.row(job.pk)
    assert (row["status"], row["org_id"]) == ("success", "written")
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:finished"]


def test_a_finish_that_was_rolled_back_does_not_count(jobs: Rows) -> None:
    @job_handler("undone")
    def undone(job: Any, lease: Any) -> None:
        with transaction.atomic():
            lease.finish()
            raise ValueError("no")

    job = enqueue("undone", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    assert jobs.row(job.pk)["status"] == "failed"


@pytest.mark.parametrize("run_all", [once, lambda: run_due(1, 60)])
@pytest.mark.parametrize(
    ("verb", "status", "outcome"),
    [
        ("finish", "success", "succeeded"),
        ("fail", "queued", "failed"),
        ("release", "queued", "released"),
    ],
)
def test_a_job_that_its_handler_has_ended_is_counted_by_how_it_did(
    verb: str, status: str, outcome: str, run_all: Any, jobs: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    @job_handler("own")
    def own(job: Any, lease: Any) -> None:
        lease.fail("E", delay_sec=60) if verb == "fail" else getattr(lease, verb)()
        pause("own")
        raise ValueError("after its end")

    job = enqueue("own")
    tally = run_all()
    assert tally == Tally(claimed=1, **{outcome: 1})
    assert jobs.row(job.pk)["status"] == status
    [told] = [record for record in caplog.records if record.name == "jobreaper.runs"]
    assert told.exc_info


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_an_exception_that_exits_when_it_is_put_into_words_fails_its_job(jobs: Rows) -> None:
    @job_handler("raises")
    def raises(job: Any, lease: Any) -> None:
        raise Unspeakable

    job = enqueue("raises", max_attempts=1)
    assert once() == Tally(claimed=1, failed=1)
    row = jobs.row(job.pk)
    assert (row["fail_code"], row["fail_reason"]) == ("Unspeakable", "<unprintable Unspeakable>")


def test_a_retry_is_run_when_its_time_comes(jobs: Rows) -> None:
    tries: list[int] = []

    @job_handler("third")
    def third(job: Any, lease: Any) -> None:
        tries.append(job.attempt_count)
        if len(tries) < 3:
            raise ValueError

    job = enqueue("third")
    for _ in range(3):
        jobs.set(job.pk, next_earliest_run_at=ago(1))
        once()
    assert tries == [1, 2, 3]
    assert jobs.row(job.pk)["status"] == "success"


def test_a_job_taken_away_while_it_runs_is_lost_and_that_is_on_record(jobs: Rows) -> None:
    @job_handler("cancelled")
    def cancelled(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="ann")

    @job_handler("fine")
    def fine(job: Any, lease: Any) -> None: ...

    lost, other = enqueue("cancelled"), enqueue("fine")
    assert once() == Tally(claimed=2, succeeded=1, lost=1)
    assert jobs.row(lost.pk)["status"] == "cancelled"
    assert jobs.event_types(lost.pk)[-1] == "job:stale_write_rejected"
    assert jobs.row(other.pk)["status"] == "success"


def test_a_handler_that_sees_its_lease_lost_and_stops_fails_nothing(jobs: Rows) -> None:
    @job_handler("stops")
    def stops(job: Any, lease: Any) -> None:
        cancel(Job, [job.pk], by="ann")
        lease.heartbeat()

    job = enqueue("stops")
    assert once() == Tally(claimed=1, lost=1)
    assert jobs.event_types(job.pk) == ["job:enqueued", "admin:cancelled"]


def test_jobs_that_handlers_enqueue_are_run_too() -> None:
    @job_handler("chain")
    def chain(job: Any, lease: Any) -> None:
        if job.payload["n"]:
            enqueue("chain", {"n": job.payload["n"] - 1})

    enqueue("chain", {"n": 5})
    assert once().succeeded == 6


def test_a_handlers_broken_connection_is_replaced(sql: Sql, jobs: Rows) -> None:
    """celery#4878: Django's own recycling does not run outside requests."""

    @job_handler("breaks")
    def breaks(job: Any, lease: Any) -> None:
        connection.ensure_connection()
        if job.payload["n"] == 0:
            sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
        Job.objects.filter(pk=job.pk).update(org_id="seen")

    enqueue_many(({"payload": {"n": n}} for n in range(3)), type="breaks", max_attempts=1)
    assert once() == Tally(claimed=3, succeeded=2, failed=1)
