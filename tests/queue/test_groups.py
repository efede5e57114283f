"""Groups of runs: claimed, ended and announced together."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobreaper import cancel, enqueue, enqueue_many, job_handler, reap, signals
from jobreaper.models import Job
from jobreaper.protocol.batch import claim_group, fail_group, finish_group, release_group
from jobreaper.queue.worker import Worker
from jobreaper.tables import table_of
from tests.queue.working import once, take
from tests.rows import Rows, Sql, ago

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_of_a_group_each_job_ends_by_its_own_lease(jobs: Rows) -> None:
    made = enqueue_many([{}] * 4, type="idle").ids
    runs = take(4)
    cancel(Job, [made[0]], by="ann")
    jobs.set(made[1], lease_expires_at=ago(1))
    reap([Job])
    ending = finish_group(runs)
    assert [run.lease.pk for run in ending.lost] == made[:2]
    assert [run.lease.pk for run in ending.ended] == made[2:]
    assert all(run.lease.closed for run in ending.ended)
    assert all(run.lease.lost for run in ending.lost)
    assert [jobs.row(pk)["status"] for pk in made] == ["cancelled", "queued", "success", "success"]
    assert [jobs.event_types(pk)[-1] for pk in made] == [
        "job:stale_write_rejected",
        "job:stale_write_rejected",
        "job:finished",
        "job:finished",
    ]
    # A second try of the same group writes nothing.
    assert finish_group(runs).ended == []


def test_a_lease_that_this_worker_has_taken_anew_is_not_ended_by_the_old_one(jobs: Rows) -> None:
    job = enqueue("idle")
    old = take(1)
    jobs.set(job.pk, lease_expires_at=ago(1))
    reap([Job])
    jobs.set(job.pk, next_earliest_run_at=ago(1))
    new = take(1)
    assert finish_group(old).lost == old
    assert jobs.row(job.pk)["status"] == "processing"
    assert finish_group(new).ended == new


def test_a_job_locked_by_somebody_keeps_the_others_of_its_group_waiting_no_moment(
    jobs: Rows, second_connection: Any
) -> None:
    made = enqueue_many([{}] * 3, type="idle").ids
    runs = take(3)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [made[1]])
    ending = finish_group(runs)
    assert [run.lease.pk for run in ending.ended] == [made[0], made[2]]
    assert [run.lease.pk for run in ending.locked] == [made[1]]
    second_connection.rollback()
    assert finish_group(ending.locked).ended == ending.locked
    assert jobs.row(made[1])["status"] == "success"


def test_a_group_given_back_costs_no_attempt(jobs: Rows) -> None:
    made = enqueue_many([{}] * 2, type="idle").ids
    heard: list[Any] = []

    def note(lease: Any, details: Any, **_: Any) -> None:
        heard.append((lease.pk, details["attempt"]))

    signals.job_released.connect(note)
    try:
        assert len(release_group(take(2)).ended) == 2
    finally:
        signals.job_released.disconnect(note)
    assert heard == [(pk, 1) for pk in made]
    for pk in made:
        assert (jobs.row(pk)["status"], jobs.row(pk)["attempt_count"]) == ("queued", 0)
        assert jobs.event_types(pk) == ["job:enqueued", "job:released"]


def test_the_event_of_a_job_in_a_group_says_how_long_it_waited_and_ran(jobs: Rows) -> None:
    job = enqueue("idle", org_id="acme")
    jobs.set(job.pk, next_earliest_run_at=ago(60))
    finish_group(take(1))
    [_, event] = jobs.events(job.pk)
    details = event["details"]
    assert details["duration_ms"] == 2000
    assert 61_000 <= details["queue_wait_ms"] < 90_000
    assert (details["org_id"], details["type"], details["attempt"]) == ("acme", "idle", 1)
    assert details["locked_by"]


def test_of_a_group_that_failed_each_goes_back_or_fails_by_its_own_error(jobs: Rows) -> None:
    retried, failed, locked, lost = made = [
        enqueue("idle", max_attempts=n, org_id="acme").pk for n in (2, 1, 1, 1)
    ]
    runs = take(4)
    errors = [ValueError("a\x00b"), KeyError("c"), ValueError(), ValueError()]
    for run, error in zip(runs, errors, strict=True):
        run.error = error
    cancel(Job, [lost], by="ann")
    jobs.sql("BEGIN")
    jobs.sql("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", locked)
    ending = fail_group(runs)
    jobs.sql("ROLLBACK")
    assert [
        [run.lease.pk for run in part] for part in (ending.ended, ending.locked, ending.lost)
    ] == [
        [retried, failed],
        [locked],
        [lost],
    ]
    rows = [jobs.row(pk) for pk in made]
    assert [(row["status"], row["fail_code"], row["fail_reason"]) for row in rows[:2]] == [
        ("queued", "ValueError", "a\\x00b"),
        ("failed", "KeyError", "'c'"),
    ]
    assert rows[2]["status"] == "processing"
    [_, event] = jobs.events(failed)
    assert event["type"] == "job:failed"
    assert (event["details"]["duration_ms"], event["details"]["fail_code"]) == (2000, "KeyError")
    assert event["details"]["queue_wait_ms"] >= 1000
    assert jobs.event_types(lost)[-1] == "job:stale_write_rejected"
    assert fail_group(ending.locked).ended == ending.locked


@pytest.mark.parametrize("verb", ["finish", "fail", "release"])
def test_a_job_that_its_handler_ends_is_not_charged_for_the_wait_before_its_turn(
    verb: str, jobs: Rows
) -> None:
    @job_handler("ends")
    def end(job: Any, lease: Any) -> None:
        lease.fail("E") if verb == "fail" else getattr(lease, verb)()

    job = enqueue("ends")
    [run] = claim_group(table_of(Job), 1, types=["ends"])
    jobs.set(job.pk, claimed_at=ago(60))
    run.claimed_at -= 60
    worker = Worker()
    worker._lanes[0].hand.take([run])
    worker._lanes[0].crew.start()
    worker._lanes[0].crew.dismiss()
    details = jobs.events(job.pk)[-1]["details"]
    assert 0 <= details["duration_ms"] < 30_000
    assert 60_000 <= details["queue_wait_ms"] < 90_000


@pytest.mark.parametrize("uid", [None, "jobreaper.shop"])
def test_who_listens_for_each_job_hears_of_each(uid: str | None, jobs: Rows) -> None:
    made = enqueue_many([{}] * 3, type="idle").ids
    heard: list[Any] = []

    def claimed(lease: Any, **_: Any) -> None:
        heard.append(("claimed", lease.pk))

    def finished(lease: Any, details: Any, **_: Any) -> None:
        heard.append(("finished", lease.pk, details["duration_ms"]))

    listened_to = [signals.job_claimed, signals.job_finished]
    assert not any(map(signals.wanted_one_by_one, listened_to)), "only the package listens"
    signals.job_claimed.connect(claimed, dispatch_uid=uid)
    signals.job_finished.connect(finished, dispatch_uid=uid)
    try:
        finish_group(take(3))
    finally:
        signals.job_claimed.disconnect(claimed, dispatch_uid=uid)
        signals.job_finished.disconnect(finished, dispatch_uid=uid)
    assert heard == [("claimed", pk) for pk in made] + [("finished", pk, 2000) for pk in made]


def test_each_run_is_announced_once_at_its_start_and_at_its_end(jobs: Rows) -> None:
    made = enqueue_many([{}] * 2, type="idle").ids
    heard: list[Any] = []

    def started(lease: Any, **_: Any) -> None:
        heard.append(("started", lease.pk))

    def ended(lease: Any, error: Any, **_: Any) -> None:
        heard.append(("ended", lease.pk, error))

    signals.run_started.connect(started)
    signals.run_ended.connect(ended)
    try:
        once()
    finally:
        signals.run_started.disconnect(started)
        signals.run_ended.disconnect(ended)
    assert heard == [note for pk in made for note in (("started", pk), ("ended", pk, None))]


def test_a_batch_is_one_line_in_the_log_and_a_line_a_job_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "jobreaper.leases")
    enqueue_many([{}] * 3, type="idle")
    caplog.clear()
    finish_group(take(3))
    assert [line.split()[:3:2] for line in caplog.messages] == [
        ["jobs_claimed", "count=3"],
        ["jobs_finished", "count=3"],
    ]
    caplog.clear()
    enqueue_many([{}] * 2, type="idle")
    caplog.set_level(logging.DEBUG, "jobreaper.leases")
    finish_group(take(2))
    events = [line.split()[0] for line in caplog.messages if line.startswith("job_")]
    assert events == ["job_claimed"] * 2 + ["job_finished"] * 2


def test_a_finish_whose_answer_was_lost_counts_once(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    """The connection ends after the commit and before the answer."""
    from jobreaper.protocol import batch

    job = enqueue("idle")
    runs = take(1)
    fetch: Callable[..., Any] = batch.fetch  # type: ignore[attr-defined]
    answers = iter([True, False])

    def fetch_and_lose(*args: Any) -> Any:
        rows = fetch(*args)
        if next(answers):
            sql("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
            Job.objects.exists()
        return rows

    monkeypatch.setattr(batch, "fetch", fetch_and_lose)
    assert finish_group(runs).ended == runs
    assert jobs.event_types(job.pk) == ["job:enqueued", "job:finished"]
