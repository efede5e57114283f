"""What `jobreaper.testing` gives to people's own tests."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import TestCase

import jobreaper
from jobreaper import LeaseLost, enqueue, enqueue_many, job_handler
from jobreaper.exceptions import JobreaperError
from jobreaper.models import Job, JobEvent
from jobreaper.queue.handlers import _handlers
from jobreaper.testing import (
    enqueued,
    finish_twice,
    freeze,
    kill_worker_at,
    lose_lease,
    make_due,
    run_due,
)
from project.media.models import Job as MediaJob

pytest_plugins = ["jobreaper.testing.plugin"]


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = dict(_handlers)
    yield
    _handlers.clear()
    _handlers.update(before)


@pytest.fixture
def echo() -> list[Any]:
    seen: list[Any] = []
    job_handler("echo")(lambda job, lease: seen.append(job.payload))
    return seen


# Running.


class InATestCase(TestCase):
    def test_due_jobs_are_run_and_what_they_enqueue_too(self) -> None:
        @job_handler("count-down")
        def count_down(job: Any, lease: Any) -> int:
            if n := job.payload["n"]:
                enqueue("count-down", {"n": n - 1})
            return int(n)

        enqueue("count-down", {"n": 3})
        ran = run_due()
        assert (len(ran.succeeded), ran.failed, ran.errors) == (4, [], {})
        assert {job.result for job in Job.objects.all()} == {0, 1, 2, 3}

    def test_an_exception_fails_its_attempt_and_is_told(self) -> None:
        @job_handler("odd")
        async def odd(job: Any, lease: Any) -> None:
            raise LookupError("no such pixel")

        job = enqueue("odd", max_attempts=2)
        ran = run_due()
        assert (ran.failed, repr(ran.errors[job.pk])) == ([job.pk], "LookupError('no such pixel')")
        assert run_due().failed == []
        assert make_due() == 1
        assert run_due().failed == [job.pk]
        assert Job.objects.get().status == "failed"

    def test_a_table_of_ones_own_runs_with_a_function(self) -> None:
        job = MediaJob.objects.create(stage="clip")
        seen: list[Any] = []
        assert run_due(MediaJob, lambda job, lease: seen.append(job)).succeeded == [job.pk]
        assert seen == [job]

    def test_a_table_of_ones_own_runs_by_its_leased_task(self) -> None:
        job = MediaJob.objects.create(stage="no-such-work", payload={"source": "/none.mp4"})
        ran = run_due(MediaJob)
        assert "no work for the stage" in str(ran.errors[job.pk])

    def test_a_lost_lease_is_noticed_and_the_job_is_due_again(self) -> None:
        @job_handler("slow")
        def slow(job: Any, lease: Any) -> None:
            if job.attempt_count == 1:
                lose_lease(lease)
                lease.check()

        job = enqueue("slow")
        ran = run_due()
        assert (ran.lost, ran.succeeded) == ([job.pk], [job.pk])
        assert isinstance(ran.errors[job.pk], LeaseLost)

    def test_a_frozen_worker_does_not_know_and_its_end_is_rejected(self) -> None:
        @job_handler("slow")
        def slow(job: Any, lease: Any) -> None:
            if job.attempt_count == 1:
                freeze(lease)
                lease.check()

        job = enqueue("slow")
        ran = run_due()
        assert (ran.lost, ran.succeeded) == ([job.pk], [job.pk])
        assert JobEvent.objects.filter(type="job:stale_write_rejected").count() == 1

    def test_what_needs_another_session_says_so(self) -> None:
        job = enqueue("slow")
        for crash in (finish_twice, lambda job: kill_worker_at("in finish", job)):
            with pytest.raises(JobreaperError, match="TransactionTestCase"):
                crash(job)


@pytest.mark.django_db
def test_a_job_that_enqueues_itself_ends_at_the_limit() -> None:
    job_handler("again")(lambda job, lease: enqueue("again") and None)
    enqueue("again")
    assert len(run_due(limit=5)) == 5


# What was enqueued.


@pytest.mark.django_db
def test_only_jobs_of_the_block_are_looked_at() -> None:
    enqueue("mail", {"to": "bob"})
    with enqueued() as jobs:
        mail = enqueue("mail", {"to": "ann", "cc": ["eve"]}, queue="slow")
    assert jobs.one(type="mail") == mail
    assert jobs.one(payload={"to": "ann"}, queue="slow") == mail
    jobs.none(payload={"to": "bob"})
    assert enqueued().number(2, type="mail")[1] == mail


@pytest.mark.django_db
def test_an_assertion_says_what_is_queued() -> None:
    enqueue("mail", {"to": "ann"})
    with pytest.raises(AssertionError) as error:
        enqueued().one(type="mail", payload={"to": "bob"})
    first, second = str(error.value).splitlines()
    assert first == (
        "expected one queued job with type='mail', payload={'to': 'bob'}, and 0 were found. "
        "Queued are:"
    )
    assert 'type="mail"' in second
    assert 'payload={"to": "ann"}' in second


@pytest.mark.django_db
def test_a_long_list_of_jobs_is_cut() -> None:
    enqueue_many([{}] * 30, type="mail")
    with pytest.raises(AssertionError, match=r"\.\.\. and 10 more"):
        enqueued().none()


# Fixtures.


def test_eager_jobs_run_as_they_are_enqueued(jobreaper_eager: Any, echo: Any) -> None:
    enqueue("echo", {"n": 1})
    enqueue_many([{"payload": {"n": 2}}, {"payload": {"n": 3}}], type="echo")
    assert echo == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [len(ran) for ran in jobreaper_eager] == [1, 2]


def test_the_exception_of_an_eager_job_is_raised(jobreaper_eager: Any) -> None:
    @job_handler("odd")
    def odd(job: Any, lease: Any) -> None:
        raise LookupError("no such pixel")

    with pytest.raises(LookupError, match="pixel"):
        enqueue("odd")


def test_a_real_worker_runs_what_is_enqueued(jobreaper_worker: Any, echo: Any) -> None:
    worker = jobreaper_worker()
    enqueue("echo", {"n": 1})
    worker.wait()
    assert echo == [{"n": 1}]
    assert Job.objects.get().status == "success"


# Crashes.


def statuses() -> list[str]:
    return list(Job.objects.values_list("status", flat=True))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("after claim", "queued"),
        ("before finish", "queued"),
        ("in finish", "success"),
        ("after finish", "success"),
    ],
)
def test_a_worker_is_killed_at_the_moment(moment: str, status: str, echo: Any) -> None:
    job = enqueue("echo")
    kill_worker_at(moment, job)
    assert statuses() == [status]
    assert run_due().succeeded == ([job.pk] if status == "queued" else [])
    assert statuses() == ["success"]
    events = list(JobEvent.objects.order_by("id").values_list("type", flat=True))
    lost = ["job:worker_lost"] if status == "queued" else []
    assert events == ["job:enqueued", *lost, "job:finished"]
    connection.ensure_connection()
    assert connection.is_usable()


@pytest.mark.django_db(transaction=True)
def test_a_moment_that_is_not_reached_is_an_error(capfd: Any) -> None:
    job_handler("odd")(lambda job, lease: 1 / 0)
    with pytest.raises(AssertionError, match="did not come to 'in finish'"):
        kill_worker_at("in finish", enqueue("odd"))
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_moment_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="after claim, before finish"):
        kill_worker_at("at lunch", Job())


@pytest.mark.django_db(transaction=True)
def test_of_two_workers_one_finishes(echo: Any) -> None:
    job = enqueue("echo")
    first, second = finish_twice(job)
    assert isinstance(first, LeaseLost)
    assert second is None
    assert len(echo) == 2
    assert (statuses(), Job.objects.get().attempt_count) == (["success"], 2)


@pytest.mark.django_db(transaction=True)
def test_a_job_that_cannot_be_claimed_is_an_error(echo: Any) -> None:
    job = enqueue("echo")
    jobreaper.cancel(Job, [job.pk], by="ann")
    with pytest.raises(AssertionError, match="it is cancelled"):
        finish_twice(job)
