"""A job's queue: which workers run it, apart from its stage and its type."""

from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from jobreaper import claim, claim_next, conf, enqueue, enqueue_many, pause, resume
from jobreaper.control.pauses import is_paused
from jobreaper.models import Job, JobEvent
from jobreaper.queue.runs import Tally
from jobreaper.tables import table_of
from project.media.models import Job as MediaJob
from tests.queue.working import once
from tests.rows import Rows, ago

pytestmark = pytest.mark.usefixtures("transactional_db")

TWO = override_settings(JOBREAPER={"QUEUES": {"slow": {"max_running": 2}}})


def claimed(n: int = 9, **options: Any) -> list[Any]:
    return [lease.pk for lease in claim_next(Job, n, **options)]


def test_a_job_is_in_the_queue_it_names_and_otherwise_in_default(jobs: Rows) -> None:
    enqueue("mail")
    old = jobs.plant(type="mail")  # As code from before the column inserts it.
    slow = enqueue("mail", queue="slow")
    assert slow.queue == "slow"
    assert jobs.row(old)["queue"] == "default"
    queues = [event.details["queue"] for event in JobEvent.objects.order_by("id")]
    assert queues == ["default", "slow"]


@pytest.mark.parametrize("name", ["", None, 7, "a\x00", "x" * 256])
def test_what_cannot_be_a_queue_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="queue"):
        enqueue("mail", queue=name)
    assert not Job.objects.exists()


def test_a_claim_of_some_queues_takes_no_other_job() -> None:
    enqueue("mail")
    slow, night = enqueue("mail", queue="slow"), enqueue("mail", queue="night")
    assert claimed(queues=["slow"]) == [slow.pk]
    assert claimed(queues=["slow"]) == []
    assert night.pk in claimed(queues=["night", "default"])


def test_queues_and_stages_are_two_things() -> None:
    enqueue("mail", queue="slow", stage="smtp")
    enqueue("mail", queue="smtp")
    wanted = enqueue("mail", queue="smtp", stage="smtp")
    assert claimed(queues=["smtp"], stages=["smtp"]) == [wanted.pk]


def test_the_jobs_of_a_table_without_queues_are_in_default() -> None:
    job = MediaJob.objects.create()
    assert claim_next(MediaJob, queues=["slow"]) == []
    [lease] = claim_next(MediaJob, queues=["slow", "default"])
    assert lease.pk == job.pk


def test_a_worker_runs_its_queues_only(jobs: Rows) -> None:
    enqueue("idle")
    enqueue("idle", queue="slow")
    assert once(queues=["slow"]) == Tally(claimed=1, succeeded=1)
    assert {row["queue"]: row["status"] for row in jobs.all().values()} == {
        "default": "queued",
        "slow": "success",
    }


def test_manage_py_work_has_an_option_for_it(jobs: Rows, capsys: Any) -> None:
    enqueue_many([{"queue": queue} for queue in "abc"], type="idle")
    call_command("work", "--once", "--queue", "a", "--queue", "c")
    assert sorted(r["queue"] for r in jobs.all().values() if r["status"] == "success") == ["a", "c"]


def test_a_paused_queue_waits_and_a_stage_of_its_name_does_not() -> None:
    slow, other = enqueue("mail", queue="slow"), enqueue("mail", stage="slow")
    assert pause("queue:slow")
    assert list(Job.objects.filter(is_paused(table_of(Job)))) == [slow]
    assert claimed() == [other.pk]
    assert claim(Job, slow.pk) is None
    assert resume("queue:slow")
    assert claimed() == [slow.pk]


@TWO
def test_no_more_than_max_running_of_a_queue_run_and_others_take_the_room(jobs: Rows) -> None:
    slow = enqueue_many([{}] * 4, type="mail", queue="slow").ids
    other = enqueue("mail")
    assert claimed(4) == slow[:2]
    assert claimed() == [other.pk]
    assert claim(Job, slow[2]) is None
    jobs.set(slow[0], lease_expires_at=ago(1))
    assert claimed() == [slow[2]]


@override_settings(
    JOBREAPER={
        "QUEUES": {"slow": {"max_running": 3}},
        "STAGES": {"heavy": {"max_running": 1}},
    }
)
def test_limits_of_a_queue_and_of_a_stage_hold_together() -> None:
    enqueue_many([{}] * 5, type="mail", queue="slow", stage="heavy")
    light = enqueue_many([{}] * 5, type="mail", queue="slow", stage="light").ids
    taken: list[Any] = []
    while more := claimed():
        taken += more
    running = Job.objects.filter(pk__in=taken)
    assert running.filter(stage="heavy").count() == 1
    assert running.filter(pk__in=light).count() == 2
    assert len(taken) == 3


@pytest.mark.parametrize("bad", [2, {"max_running": 0}, {"max_runing": 2}, {}])
def test_a_bad_limit_is_named(bad: Any) -> None:
    _, [problem] = conf.read({"QUEUES": {"slow": bad}}, {})
    assert problem.id == "E002"
    assert "JOBREAPER['QUEUES']['slow']" in problem.message
