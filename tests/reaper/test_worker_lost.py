"""A worker that is known to be dead: its leases are taken back without waiting for their end."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils.dateparse import parse_datetime
from pytest_django import Settings

from jobreaper import Lease, LeaseLost, claim, worker_id
from jobreaper.reaper.dead_workers import give_back
from jobreaper.states import Reason
from jobreaper.tables import table_of
from project.media.models import AsrJob, Job
from tests.rows import Rows, ago


def claimed(jobs: Rows, worker: str = "w1", **columns: Any) -> Lease:
    lease = claim(Job, jobs.plant(**columns), worker=worker)
    assert lease is not None
    return lease


def bury(worker: str = "w1", reason: Reason = Reason.WORKER_LOST) -> list[Any]:
    return [job.pk for job in give_back(table_of(Job), worker, "killed by SIGKILL", reason)]


def test_every_job_of_the_dead_worker_goes_back_and_no_other(jobs: Rows) -> None:
    lost = [claimed(jobs).pk for _ in range(2)]
    others = [
        claimed(jobs, worker="w2").pk,
        claimed(jobs, worker="w1:7").pk,
        jobs.plant(status="success", locked_by="w1"),
    ]
    before = {key: jobs.row(key) for key in others}
    assert sorted(bury()) == lost
    assert all(jobs.row(key)["status"] == "queued" for key in lost)
    assert {key: jobs.row(key) for key in others} == before
    assert bury() == []


def test_only_the_tables_own_jobs_go_back(jobs: Rows, asr_jobs: Rows) -> None:
    key = asr_jobs.plant()
    assert claim(AsrJob, key, worker="w1")
    assert bury() == []
    assert asr_jobs.row(key)["status"] == "processing"


def test_the_first_loss_is_due_at_once_and_the_second_with_its_backoff(jobs: Rows) -> None:
    lease = claimed(jobs)
    bury()
    again = claim(Job, lease.pk, worker="w1")
    assert again is not None
    bury()
    assert claim(Job, lease.pk) is None
    row = jobs.row(lease.pk)
    assert (row["attempt_count"], row["reap_count"], row["lease_epoch"]) == (2, 2, 4)
    waits = row["next_earliest_run_at"] - datetime.fromisoformat(jobs.events(lease.pk)[-1]["at"])
    assert waits == timedelta(minutes=2)


def test_a_dead_workers_last_attempt_fails_the_job(jobs: Rows) -> None:
    lease = claimed(jobs, attempt_count=2)
    bury()
    row = jobs.row(lease.pk)
    assert (row["status"], row["fail_code"], row["fail_reason"]) == (
        "failed",
        "worker_lost",
        "killed by SIGKILL",
    )


def test_it_counts_against_the_budget_of_lost_workers(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 2}}}
    lease = claimed(jobs, stage="asr", attempt_count=2)
    bury()
    row = jobs.row(lease.pk)
    assert (row["status"], row["attempt_count"], row["reap_count"]) == ("queued", 2, 1)
    jobs.set(lease.pk, next_earliest_run_at=ago(1))
    assert claim(Job, lease.pk, worker="w1")
    bury()
    assert jobs.row(lease.pk)["fail_code"] == "poison"


@pytest.mark.parametrize(
    ("attempts_before", "outcome", "fail_code"),
    [(0, "queued", None), (2, "failed", "worker_lost")],
)
def test_the_event_says_how_the_worker_died_and_what_became_of_the_job(
    jobs: Rows, attempts_before: int, outcome: str, fail_code: str | None
) -> None:
    lease = claimed(jobs, stage="clip", attempt_count=attempts_before)
    row = jobs.row(lease.pk)
    give_back(table_of(Job), "w1", "killed by SIGKILL\x00")
    [event] = jobs.events(lease.pk)
    details = event["details"]
    for name in ("claimed_at", "last_heartbeat_at"):
        assert parse_datetime(details.pop(name)) == row[name]
    run_at = details.pop("next_earliest_run_at")
    assert (run_at is None) == (outcome == "failed")
    assert event == {
        "type": "job:worker_lost",
        "table": "jobs",
        "details": {
            "reason": "worker_lost",
            "how": "killed by SIGKILL\\x00",
            "outcome": outcome,
            "fail_code": fail_code,
            "locked_by": "w1",
            "stage": "clip",
            "attempt": attempts_before + 1,
            "epoch": 1,
            "reaper": worker_id(),
        },
        "at": event["at"],
    }


def test_a_worker_wrongly_declared_dead_writes_nothing_and_is_told_so(jobs: Rows) -> None:
    lease = claimed(jobs)
    bury()
    with pytest.raises(LeaseLost):
        lease.finish()
    assert jobs.row(lease.pk)["status"] == "queued"


def test_a_worker_that_was_told_to_stop_costs_no_attempt_however_often(
    jobs: Rows, settings: Settings
) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 1}}}
    for stage in ("clip", "asr"):
        lease = claimed(jobs, stage=stage, attempt_count=2)
        for _ in range(3):
            assert bury(reason=Reason.WORKER_STOPPED) == [lease.pk]
            row = jobs.row(lease.pk)
            assert (row["status"], row["attempt_count"], row["reap_count"]) == ("queued", 2, 0)
            assert jobs.events(lease.pk)[-1]["details"]["reason"] == "worker_stopped"
            assert claim(Job, lease.pk, worker="w1") is not None
        bury()
        assert jobs.row(lease.pk)["status"] == "failed"


def test_a_job_that_must_not_run_twice_does_not_after_a_deploy(
    jobs: Rows, settings: Settings
) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"on_expiry": "fail"}}}
    lease = claimed(jobs, stage="asr")
    bury(reason=Reason.WORKER_STOPPED)
    row = jobs.row(lease.pk)
    assert (row["status"], row["fail_code"], row["reap_count"]) == ("failed", "worker_lost", 0)
