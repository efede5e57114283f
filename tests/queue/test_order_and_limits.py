"""Which job comes next: priorities, times, pauses, and how many of a stage may run."""

from functools import partial
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import override_settings

from jobreaper import UnknownTable, claim, claim_next, enqueue, enqueue_many, pause, reap, resume
from jobreaper.control.pauses import paused
from jobreaper.models import Job, Pause
from jobreaper.presence.here import lock
from project.media.models import Job as MediaJob
from tests.races.rivals import Rivals
from tests.rows import Rows, Sql, ago, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")

TWO = override_settings(JOBREAPER={"STAGES": {"heavy": {"max_running": 2}}})


def claimed(n: int, **options: Any) -> list[Any]:
    return [lease.pk for lease in claim_next(Job, n, **options)]


# Order.


def test_priority_comes_first_then_time_then_key(jobs: Rows) -> None:
    low_old = jobs.plant(priority=-1, next_earliest_run_at=ago(900))
    old = jobs.plant(next_earliest_run_at=ago(60))
    new = jobs.plant(next_earliest_run_at=ago(30))
    untimed = jobs.plant()
    high_untimed = jobs.plant(priority=9)
    high = jobs.plant(priority=9, next_earliest_run_at=ago(1))
    jobs.plant(priority=99, next_earliest_run_at=ahead(60))
    assert claimed(4) == [high, high_untimed, old, new]
    assert claimed(9) == [untimed, low_old]


def test_a_claim_takes_no_more_than_it_asked_for_over_many_priorities(jobs: Rows) -> None:
    keys = {n: jobs.plant(priority=n, next_earliest_run_at=ago(60)) for n in range(-5, 5)}
    assert claimed(3) == [keys[4], keys[3], keys[2]]
    assert claimed(100) == [keys[n] for n in range(1, -6, -1)]
    assert claimed(1) == []


def test_rivals_share_what_there_is(rivals: Rivals, jobs: Rows) -> None:
    made = set(enqueue_many([{"priority": n % 3} for n in range(200)], type="mail").ids)
    takers = [rivals.start(lambda: [claimed(7) for _ in range(12)]) for _ in range(3)]
    taken = [pk for taker in takers for batch in taker.result() for pk in batch]
    assert len(taken) == len(set(taken)) == len(made)


# Pauses.


def test_a_paused_type_waits_and_the_others_go_on(jobs: Rows) -> None:
    mail, sms = enqueue("mail"), enqueue("sms")
    assert pause("mail", by="ann", reason="the relay is down")
    assert claimed(9) == [sms.pk]
    assert claim(Job, mail.pk) is None
    assert [(p.name, p.by, p.reason) for p in paused()] == [("mail", "ann", "the relay is down")]
    assert resume("mail")
    assert claimed(9) == [mail.pk]


def test_a_pause_is_of_types_and_of_stages(jobs: Rows) -> None:
    by_stage = enqueue("mail", stage="smtp")
    without_stage = jobs.plant(type="mail")
    pause("smtp")
    assert claimed(9) == [without_stage]
    resume("smtp")
    pause("mail")
    assert claim(Job, by_stage.pk) is None
    resume("mail")
    assert claimed(9) == [by_stage.pk]


def test_a_pause_is_of_one_table() -> None:
    media, own = MediaJob.objects.create(stage="clip"), enqueue("clip")
    pause("clip", model=MediaJob)
    assert claim(MediaJob, media.pk) is None
    assert claim(Job, own.pk) is not None
    assert resume("clip", model=MediaJob)
    assert claim(MediaJob, media.pk) is not None


def test_a_pause_stops_neither_what_runs_nor_the_reaper(jobs: Rows) -> None:
    runs, dead = enqueue("mail"), enqueue("mail")
    lease = claim(Job, runs.pk)
    assert lease is not None
    claim(Job, dead.pk)
    pause("mail")
    jobs.set(dead.pk, lease_expires_at=ago(1))
    assert reap([Job]).requeued_ids["jobreaper_jobs"] == [dead.pk]
    lease.finish()
    assert jobs.row(runs.pk)["status"] == "success"


def test_pausing_twice_keeps_the_last_reason() -> None:
    assert pause("mail", reason="a")
    assert not pause("mail", reason="b")
    assert [p.reason for p in paused()] == ["b"]
    assert resume("mail")
    assert not resume("mail")


def test_a_pause_and_its_end_survive_a_session_that_was_ended(sql: Sql) -> None:
    def end_session() -> None:
        connection.ensure_connection()
        sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)

    end_session()
    assert pause("mail") is True
    end_session()
    assert [row.name for row in paused()] == ["mail"]
    end_session()
    assert resume("mail") is True
    end_session()
    assert resume("mail") is False


def test_a_table_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownTable):
        pause("mail", model=Pause)


def test_pausing_by_command(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("pause", "mail", reason="tests")
    call_command("pause")
    call_command("resume", "mail")
    call_command("resume", "mail")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "mail of jobreaper_jobs is paused"
    assert said[1].startswith("mail of jobreaper_jobs since ")
    assert said[1].endswith(": tests")
    assert said[2:] == [
        "mail of jobreaper_jobs is resumed",
        "mail of jobreaper_jobs was not paused",
    ]


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_command_names_the_tables_it_knows(command: str) -> None:
    with pytest.raises(CommandError, match="jobreaper_jobs") as refused:
        call_command(command, "mail", table="nonsense")
    assert refused.value.returncode == 2


# How many may run.


@TWO
def test_no_more_than_max_running_of_a_stage_run_and_others_take_the_room(jobs: Rows) -> None:
    heavy = enqueue_many([{}] * 5, type="heavy").ids
    light = enqueue_many([{}] * 3, type="light").ids
    first = claim_next(Job, 4)
    assert [lease.pk for lease in first] == heavy[:2]
    # The stage is full: it is passed over, and keeps nobody waiting.
    assert claimed(9) == light
    assert claim(Job, heavy[2]) is None
    first[0].finish()
    assert claimed(9) == [heavy[2]]
    assert claimed(9, stages=["heavy"]) == []


@TWO
def test_a_dead_job_takes_no_place(jobs: Rows) -> None:
    """pgqueuer#475: a stale job must not be in the way of its own recovery."""
    heavy = enqueue_many([{}] * 5, type="heavy").ids
    assert claimed(9) == heavy[:2]
    jobs.set(heavy[0], lease_expires_at=ago(1))
    assert claimed(9) == [heavy[2]]
    assert claimed(9) == []


@TWO
def test_rivals_do_not_overshoot(rivals: Rivals, jobs: Rows) -> None:
    heavy = enqueue_many([{}] * 40, type="heavy").ids

    def claim_each(half: Any) -> None:
        for pk in half:
            claim(Job, pk)

    claimers = [
        rivals.start(lambda: [claim_next(Job, 3) for _ in range(4)] and None) for _ in range(4)
    ]
    claimers += [rivals.start(partial(claim_each, half)) for half in (heavy[20:30], heavy[30:])]
    for claimer in claimers:
        claimer.result()
    [running] = jobs.sql("SELECT count(*) FROM jobreaper_jobs WHERE status = 'processing'")
    assert running == {"count": 2}


@TWO
def test_a_message_that_finds_its_stage_full_can_be_sent_again(jobs: Rows) -> None:
    heavy = enqueue_many([{}] * 3, type="heavy").ids
    assert len(claimed(2)) == 2
    jobs.set(heavy[2], dispatched_at=ago(1))
    assert claim(Job, heavy[2]) is None
    assert jobs.row(heavy[2])["dispatched_at"] is None


def test_without_limits_no_lock_is_taken(django_assert_num_queries: Any) -> None:
    enqueue("heavy")
    lock(connection)  # As after the first claim on it.
    with django_assert_num_queries(1):
        assert len(claimed(1)) == 1


@TWO
def test_stages_without_a_limit_are_claimed_without_a_lock(django_assert_num_queries: Any) -> None:
    enqueue("light")
    lock(connection)  # As after the first claim on it.
    with django_assert_num_queries(1):
        assert len(claimed(1, stages=["light"])) == 1


@override_settings(JOBREAPER={"STAGES": {"clip": {"max_running": 1}}})
def test_tables_of_ones_own_are_kept_to_it_too() -> None:
    first, second = (MediaJob.objects.create(stage="clip") for _ in range(2))
    assert len(claim_next(MediaJob, 5)) == 1
    assert claim(MediaJob, second.pk) is None
    assert MediaJob.objects.get(pk=first.pk).status == "processing"
