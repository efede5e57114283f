"""Workers that die or freeze in mid-job: another finishes the job, and its effect is there once."""

import pytest
from django.db import transaction

from jobreaper import claim, reap
from jobreaper.states import EventType, FailCode, Status
from project.media.models import Job
from tests.processes.conftest import Ledger, ReadEvents, ReadRow, Sql, Start
from tests.processes.effects import write_effect
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def reap_once_expired(read: ReadRow, pk: int) -> None:
    """Run passes until one takes the job; none of them may take it before its lease ran out."""

    def is_reaped() -> bool:
        expired: bool = read(pk)["expired"]
        if reap().requeued_ids["jobs"] == [pk]:
            return True
        assert not expired, "a pass left an expired lease alone"
        return False

    until(is_reaped)


def reap_now(sql: Sql, pk: int) -> None:
    """Let the lease have run out, and take the job."""
    sql("UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE id = %s", pk)
    assert reap().requeued_ids["jobs"] == [pk]


def finish_here(pk: int) -> str:
    """Do the job in this process; return the name of its worker."""
    lease = until(lambda: claim(Job, pk))
    with transaction.atomic():
        write_effect(lease)
        lease.finish()
    return lease.worker


def test_a_job_whose_worker_was_killed_is_finished_by_another_and_takes_effect_once(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, events: ReadEvents
) -> None:
    worker, other = start_worker(), start_worker()
    assert worker.ask("claim", job) == "claimed"
    name = worker.ask("identify")
    worker.kill()
    assert row(job)["locked_by"] == name
    # oban#862: host name and pid may be the same again after a restart, the boot token is not.
    assert other.ask("identify").rpartition(":")[2] != name.rpartition(":")[2]

    reap_once_expired(row, job)
    assert until(lambda: other.ask("claim", job) == "claimed")
    assert other.ask("work_and_finish") == "finished"

    after = row(job)
    assert (after["status"], after["attempt_count"], after["reap_count"]) == (Status.SUCCESS, 2, 1)
    assert [effect["epoch"] for effect in ledger()] == [after["lease_epoch"]]
    assert events(job) == [EventType.REAPER_REQUEUED, EventType.JOB_FINISHED]


def test_an_effect_that_was_not_committed_dies_with_its_worker(
    start_worker: Start, job: int, ledger: Ledger, events: ReadEvents, sql: Sql
) -> None:
    worker = start_worker()
    assert worker.ask("claim", job) == "claimed"
    assert worker.ask("work_and_finish_in_steps") == "effect written"
    assert worker.ask("go on") == "finish sent"
    worker.kill()

    # Until the server has noticed, the dead transaction still locks the row.
    sql("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    until(lambda: reap().requeued_ids["jobs"] == [job])
    name = finish_here(job)

    assert [effect["worker"] for effect in ledger()] == [name]
    assert events(job) == [EventType.REAPER_REQUEUED, EventType.JOB_FINISHED]


@pytest.mark.slow
def test_a_job_that_kills_every_worker_fails_when_its_attempts_are_used_up(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, events: ReadEvents, sql: Sql
) -> None:
    """celery#9082, hindsight#2675, chancy: it stops at its cap, and the cap does not move."""
    for worker in [start_worker() for _ in range(3)]:
        assert worker.ask("claim", job) == "claimed"
        worker.kill()
        sql("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
        reap()
        sql("UPDATE jobs SET next_earliest_run_at = now()")

    after = row(job)
    assert (after["status"], after["fail_code"]) == (Status.FAILED, FailCode.TIMEOUT)
    assert (after["attempt_count"], after["max_attempts"]) == (3, 3)
    assert ledger() == []
    assert events(job) == [
        EventType.REAPER_REQUEUED,
        EventType.REAPER_REQUEUED,
        EventType.REAPER_FAILED_TIMEOUT,
    ]
    assert claim(Job, job) is None


@pytest.mark.parametrize("verb", ["finish", "work_and_finish"])
def test_a_worker_that_wakes_after_its_lease_writes_nothing(
    verb: str,
    start_worker: Start,
    job: int,
    row: ReadRow,
    ledger: Ledger,
    events: ReadEvents,
) -> None:
    """solid_queue#337: the frozen process runs on, and learns that its lease is lost."""
    frozen = start_worker()
    assert frozen.ask("claim", job) == "claimed"
    frozen.freeze()
    reap_once_expired(row, job)
    finish_here(job)
    done, effects = row(job), ledger()

    frozen.thaw()
    assert frozen.ask("check") == "LeaseLost"
    assert frozen.ask(verb) == "LeaseLost"

    assert row(job) == done
    assert ledger() == effects
    # The event of a rejected write lives and dies with the worker's transaction, as its effect.
    rejected = [EventType.JOB_STALE_WRITE_REJECTED] if verb == "finish" else []
    assert events(job) == [EventType.REAPER_REQUEUED, EventType.JOB_FINISHED, *rejected]
    assert "stale_write_rejected" in frozen.log


def test_a_worker_that_wakes_while_another_has_the_job_leaves_it_alone(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, sql: Sql
) -> None:
    frozen = start_worker()
    assert frozen.ask("claim", job) == "claimed"
    frozen.freeze()
    reap_now(sql, job)
    with until(lambda: claim(Job, job)) as lease:
        frozen.thaw()
        assert frozen.ask("finish") == "LeaseLost"
        held = row(job)
        assert (held["status"], held["locked_by"]) == (Status.PROCESSING, lease.worker)
        assert held["lease_epoch"] == lease.epoch
        lease.finish()
    assert ledger() == []


@pytest.mark.slow
def test_a_worker_frozen_before_it_sends_finish_takes_its_effect_back(
    start_worker: Start, job: int, ledger: Ledger, sql: Sql
) -> None:
    frozen = start_worker()
    assert frozen.ask("claim", job) == "claimed"
    assert frozen.ask("work_and_finish_in_steps") == "effect written"
    frozen.freeze()
    reap_now(sql, job)
    name = finish_here(job)

    frozen.thaw()
    assert frozen.ask("go on") == "LeaseLost"
    assert [effect["worker"] for effect in ledger()] == [name]


def test_a_worker_frozen_between_finish_and_commit_keeps_its_success(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, events: ReadEvents
) -> None:
    """river#1302, airflow#12396: an ended job is never declared lost from what was seen before."""
    frozen = start_worker()
    assert frozen.ask("claim", job) == "claimed"
    assert frozen.ask("work_and_finish_in_steps") == "effect written"
    assert frozen.ask("go on") == "finish sent"
    frozen.freeze()
    until(lambda: row(job)["expired"])
    # The row is locked by the finish: passes go by and do not wait for it.
    assert reap().requeued == 0

    frozen.thaw()
    assert frozen.ask("go on") == "finished"
    assert reap().requeued == 0
    assert row(job)["status"] == Status.SUCCESS
    assert len(ledger()) == 1
    assert events(job) == [EventType.JOB_FINISHED]


def test_a_native_call_that_starves_the_heartbeat_costs_the_lease_and_never_a_second_effect(
    start_worker: Start, job: int, row: ReadRow, ledger: Ledger, events: ReadEvents
) -> None:
    """bull#308, dramatiq#692: one recorded success, the old attempt is fenced."""
    starved = start_worker()
    assert starved.ask("claim", job) == "claimed"
    # For much longer than the lease: afterwards, a beat may come before a pass.
    starved.say("hold_the_gil", 5)
    reap_once_expired(row, job)
    name = finish_here(job)

    assert starved.answer() == "done"
    assert starved.ask("work_and_finish") == "LeaseLost"
    assert [effect["worker"] for effect in ledger()] == [name]
    assert events(job) == [EventType.REAPER_REQUEUED, EventType.JOB_FINISHED]
