"""Every state a row can be in, as a foreign client plants it, and what a pass makes of it: exactly
the columns, exactly the event.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from jobreaper import claim, reap, tables, worker_id
from jobreaper.states import Status
from project.media.models import AsrJob, Job
from tests.rows import Rows, Sql, ago, ahead

UNLOCKED = {
    "locked_by": None,
    "claimed_at": None,
    "lease_expires_at": None,
    "deadline_at": None,
    "dispatched_at": None,
}


def requeued_and_failed(jobs: Rows) -> tuple[list[Any], list[Any]]:
    """Run a pass over the table and return the keys it requeued and failed."""
    result = reap([jobs.table])
    assert result.all_errors == []
    return sorted(result.requeued_ids[jobs.table]), sorted(result.failed_ids[jobs.table])


def assert_left_alone(jobs: Rows, key: Any) -> None:
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [])
    assert jobs.row(key) == before
    assert jobs.events(key) == []


def waits(jobs: Rows, key: Any) -> timedelta:
    """Return how long after the reap the job is due."""
    event = jobs.events(key)[-1]
    run_at: datetime = jobs.row(key)["next_earliest_run_at"]
    return run_at - datetime.fromisoformat(event["at"])


# A lease that ran out.


def test_an_expired_job_with_attempts_left_is_requeued(jobs: Rows) -> None:
    key = jobs.plant_expired(
        stage="dub",
        attempt_count=2,
        lease_epoch=5,
        reap_count=1,
        fail_code="E1",
        fail_reason="an earlier attempt's",
        dispatched_at=ago(400),
        deadline_at=ahead(400),
        expected_duration_ms=1000,
        payload='{"keep": "me"}',
    )
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.row(key) == {
        **before,
        **UNLOCKED,
        "status": "queued",
        "lease_epoch": 6,
        "reap_count": 2,
        "next_earliest_run_at": jobs.row(key)["next_earliest_run_at"],
    }
    assert waits(jobs, key) == timedelta(minutes=2)


def test_an_expired_job_with_no_attempt_left_is_failed(jobs: Rows) -> None:
    key = jobs.plant_expired(
        attempt_count=3,
        lease_epoch=5,
        fail_code="E1",
        fail_reason="an earlier attempt's",
        next_earliest_run_at=ago(900),
        dispatched_at=ago(400),
    )
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [key])
    row = jobs.row(key)
    assert row == {
        **before,
        **UNLOCKED,
        "status": "failed",
        "lease_epoch": 6,
        "reap_count": 1,
        "finished_at": row["finished_at"],
        "fail_code": "timeout",
        "fail_reason": "lease_expired",
    }
    assert timedelta() <= jobs.now() - row["finished_at"] < timedelta(seconds=60)


def test_the_event_of_a_requeue(jobs: Rows) -> None:
    key = jobs.plant_expired(stage="clip", attempt_count=2, lease_epoch=5)
    lease_expires_at = jobs.row(key)["lease_expires_at"]
    requeued_and_failed(jobs)
    [event] = jobs.events(key)
    overdue_ms = event["details"].pop("overdue_ms")
    assert 41_000 <= overdue_ms < 101_000
    assert event == {
        "type": "reaper:requeued",
        "table": "jobs",
        "details": {
            "reason": "lease_expired",
            "locked_by": "elsewhere:7:0badf00d",
            "stage": "clip",
            "attempt": 2,
            # The epoch of the lease that was lost.
            "epoch": 5,
            "lease_expires_at": iso(lease_expires_at),
            "reaper": worker_id(),
            "next_earliest_run_at": iso(jobs.row(key)["next_earliest_run_at"]),
        },
        "at": event["at"],
    }


def test_the_event_of_a_failure(jobs: Rows) -> None:
    key = jobs.plant_expired(attempt_count=3)
    requeued_and_failed(jobs)
    [event] = jobs.events(key)
    assert event["type"] == "reaper:failed(timeout)"
    assert set(event) == {"type", "table", "details", "at"}
    assert set(event["details"]) == {
        "reason",
        "locked_by",
        "stage",
        "attempt",
        "epoch",
        "lease_expires_at",
        "overdue_ms",
        "reaper",
        "next_earliest_run_at",
    }
    assert event["details"]["stage"] is None
    assert event["details"]["next_earliest_run_at"] is None
    assert event["at"] == iso(jobs.row(key)["finished_at"])


def test_the_rows_of_the_event_table_are_generated_from_its_data(jobs: Rows, sql: Sql) -> None:
    key = jobs.plant_expired()
    requeued_and_failed(jobs)
    [row] = sql("TABLE job_events")
    assert (row["type"], row["table"], row["job_id"]) == ("reaper:requeued", "jobs", str(key))
    assert jobs.now() - row["at"] < timedelta(seconds=60)


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("attempts", "minutes"), [(0, 0.5), (1, 0.5), (2, 2), (3, 10), (4, 10), (9, 10)]
)
def test_the_backoff_grows_with_the_attempts(jobs: Rows, attempts: int, minutes: float) -> None:
    key = jobs.plant_expired(attempt_count=attempts, max_attempts=99)
    requeued_and_failed(jobs)
    assert waits(jobs, key) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "status"),
    [(0, 1, "queued"), (1, 1, "failed"), (2, 1, "failed"), (4, 5, "queued"), (5, 5, "failed")],
)
def test_the_rows_own_number_of_attempts_decides(
    jobs: Rows, settings: Settings, attempts: int, max_attempts: int, status: str
) -> None:
    settings.JOBREAPER = {"JOB_MAX_ATTEMPTS": 3}
    key = jobs.plant_expired(attempt_count=attempts, max_attempts=max_attempts)
    requeued_and_failed(jobs)
    row = jobs.row(key)
    assert row["status"] == status
    assert (row["attempt_count"], row["max_attempts"]) == (attempts, max_attempts)


def test_a_row_as_an_old_insert_makes_it_has_three_attempts(jobs: Rows) -> None:
    key = jobs.plant_expired(attempt_count=2)
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.row(key)["max_attempts"] == 3


def test_the_second_pass_finds_nothing(jobs: Rows) -> None:
    keys = [jobs.plant_expired(), jobs.plant_expired(attempt_count=3)]
    requeued_and_failed(jobs)
    after = jobs.all()
    assert requeued_and_failed(jobs) == ([], [])
    assert jobs.all() == after
    assert [len(jobs.events(key)) for key in keys] == [1, 1]


def test_the_job_row_alone_is_enough(jobs: Rows) -> None:
    # No worker's row to join with, no task class to look up, no stage known to the settings.
    key = jobs.plant(status="processing", lease_expires_at=ago(1), stage="written in cobol")
    assert requeued_and_failed(jobs) == ([key], [])
    event = jobs.events(key)[0]
    assert event["details"]["locked_by"] is None


def test_a_lease_from_a_restored_backup_is_reaped(jobs: Rows) -> None:
    key = jobs.plant_expired(lease_expires_at=ago(400 * 86_400), claimed_at=ago(401 * 86_400))
    assert requeued_and_failed(jobs) == ([key], [])


@pytest.mark.parametrize("lease_expires_at", ["-infinity", "0001-01-01 00:00Z"])
def test_a_lease_that_ended_before_all_time_is_reaped(jobs: Rows, lease_expires_at: str) -> None:
    key, other = jobs.plant_expired(lease_expires_at=lease_expires_at), jobs.plant_expired()
    assert requeued_and_failed(jobs) == ([key, other], [])


def test_a_lease_without_end_is_left_alone(jobs: Rows, sql: Sql) -> None:
    jobs.plant_running(lease_expires_at="infinity")
    assert requeued_and_failed(jobs) == ([], [])


# Rows a pass must not touch.


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PROCESSING] + ["paused"])
def test_a_job_that_is_not_running_is_left_alone(jobs: Rows, status: str) -> None:
    # With everything an expired one has, as an old worker may leave it.
    key = jobs.plant_expired(status=status, attempt_count=3, finished_at=ago(30))
    assert_left_alone(jobs, key)


@pytest.mark.parametrize("attempt_count", [1, 3])
def test_a_live_lease_is_left_alone(jobs: Rows, attempt_count: int) -> None:
    # However long it has been running, and however long ago the last beat was.
    key = jobs.plant_running(
        claimed_at=ago(86_400 * 30),
        last_heartbeat_at=ago(86_400),
        lease_expires_at=ahead(5),
        attempt_count=attempt_count,
    )
    assert_left_alone(jobs, key)


def test_only_the_running_one_of_two_jobs_alike_is_reaped(jobs: Rows) -> None:
    alike = {"stage": "clip", "payload": '{"task": "the same"}'}
    done = jobs.plant_expired(status="success", finished_at=ago(50), **alike)
    running = jobs.plant_expired(**alike)
    before = jobs.row(done)
    assert requeued_and_failed(jobs) == ([running], [])
    assert jobs.row(done) == before


def test_a_row_old_and_queued_with_nothing_else_is_left_to_the_workers(jobs: Rows) -> None:
    key = jobs.plant(created_at=ago(86_400 * 365))
    assert_left_alone(jobs, key)
    assert claim(Job, key)


# A time to run that is ahead.


def test_an_expired_job_whose_time_is_ahead_is_left_alone(jobs: Rows) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ahead(60))
    assert_left_alone(jobs, key)


def test_an_expired_job_whose_time_has_come_is_reaped(jobs: Rows) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ago(1))
    assert requeued_and_failed(jobs) == ([key], [])


@pytest.mark.parametrize("attempt_count", [3, 4])
def test_an_exhausted_job_is_failed_though_its_time_is_ahead(
    jobs: Rows, attempt_count: int
) -> None:
    key = jobs.plant_expired(next_earliest_run_at=ahead(60), attempt_count=attempt_count)
    before = jobs.row(key)
    assert requeued_and_failed(jobs) == ([], [key])
    assert jobs.row(key)["next_earliest_run_at"] == before["next_earliest_run_at"]


# No lease at all.


@pytest.fixture
def ttl_of_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table `asr_jobs` gives workers from before leases ten minutes."""
    monkeypatch.setattr(tables, "_tables", dict(tables._tables))
    tables.register(AsrJob, ttl="10m")


def no_lease(**columns: Any) -> dict[str, Any]:
    """Return what a worker from before leases leaves of a claim an hour ago."""
    return {"lease_expires_at": None, "lease_epoch": 0, "claimed_at": ago(3600), **columns}


def test_a_running_job_without_a_lease_is_left_alone_by_default(jobs: Rows) -> None:
    key = jobs.plant_expired(
        **no_lease(claimed_at=ago(86_400 * 365), last_heartbeat_at=ago(86_400 * 365))
    )
    assert_left_alone(jobs, key)


def test_an_exhausted_job_without_a_lease_is_left_alone_by_default(jobs: Rows) -> None:
    key = jobs.plant_expired(**no_lease(attempt_count=3, last_heartbeat_at=ago(86_400)))
    assert_left_alone(jobs, key)


@pytest.mark.usefixtures("ttl_of_table")
@pytest.mark.parametrize(
    ("claimed_sec", "beaten_sec", "lost"),
    [
        pytest.param(900, 601, True, id="last beat too long ago"),
        pytest.param(900, 590, False, id="beaten in time"),
        pytest.param(None, 601, True, id="beaten by a worker that writes no claim"),
        pytest.param(601, None, True, id="never beaten"),
        pytest.param(590, None, False, id="just claimed, not beaten yet"),
        # The beat kept from an earlier attempt is evidence, and condemns no fresh claim.
        pytest.param(5, 86_400, False, id="fresh claim after an old beat"),
        pytest.param(None, None, False, id="no sign of life at all"),
    ],
)
def test_with_a_time_to_live_the_last_sign_of_life_decides(
    asr_jobs: Rows, claimed_sec: float | None, beaten_sec: float | None, lost: bool
) -> None:
    key = asr_jobs.plant_expired(
        **no_lease(
            claimed_at=None if claimed_sec is None else ago(claimed_sec),
            last_heartbeat_at=None if beaten_sec is None else ago(beaten_sec),
        )
    )
    if not lost:
        assert_left_alone(asr_jobs, key)
        return
    assert requeued_and_failed(asr_jobs) == ([key], [])
    event = asr_jobs.events(key)[0]
    assert event["details"]["reason"] == "lease_expired"
    assert event["details"]["lease_expires_at"] is None
    assert event["details"]["overdue_ms"] < 60_000


@pytest.mark.usefixtures("ttl_of_table")
def test_a_tables_time_to_live_is_its_own(jobs: Rows, asr_jobs: Rows) -> None:
    silent = no_lease(last_heartbeat_at=ago(3600))
    elsewhere = jobs.plant_expired(**silent)
    here = asr_jobs.plant_expired(**silent)
    assert reap([Job, AsrJob]).requeued_ids == {"jobs": [], "asr_jobs": [here]}
    assert jobs.row(elsewhere)["status"] == "processing"


@pytest.mark.usefixtures("ttl_of_table")
def test_a_lease_counts_more_than_a_time_to_live(asr_jobs: Rows) -> None:
    key = asr_jobs.plant_running(claimed_at=ago(86_400), last_heartbeat_at=ago(86_400))
    assert_left_alone(asr_jobs, key)


def test_a_stages_time_to_live_is_its_own(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"ttl": "10m"}}}
    silent = no_lease(last_heartbeat_at=ago(3600))
    clip = jobs.plant_expired(stage="clip", **silent)
    asr = jobs.plant_expired(stage="asr", **silent)
    assert requeued_and_failed(jobs) == ([asr], [])
    assert jobs.row(clip)["status"] == "processing"


@pytest.mark.usefixtures("ttl_of_table")
def test_a_stages_time_to_live_wins_over_the_tables(asr_jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"ttl": "2h"}}}
    key = asr_jobs.plant_expired(stage="asr", **no_lease(last_heartbeat_at=ago(3600)))
    assert_left_alone(asr_jobs, key)


@pytest.mark.usefixtures("ttl_of_table")
def test_a_silent_job_with_no_attempt_left_is_failed(asr_jobs: Rows) -> None:
    key = asr_jobs.plant_expired(**no_lease(last_heartbeat_at=ago(3600), attempt_count=3))
    assert requeued_and_failed(asr_jobs) == ([], [key])
    assert asr_jobs.row(key)["fail_code"] == "timeout"


@pytest.mark.usefixtures("ttl_of_table")
def test_a_silent_job_whose_time_is_ahead_is_left_alone_unless_exhausted(asr_jobs: Rows) -> None:
    silent = no_lease(last_heartbeat_at=ago(3600), next_earliest_run_at=ahead(60))
    left_alone = asr_jobs.plant_expired(**silent)
    exhausted = asr_jobs.plant_expired(attempt_count=3, **silent)
    assert requeued_and_failed(asr_jobs) == ([], [exhausted])
    assert asr_jobs.row(left_alone)["status"] == "processing"


# Deadlines.


def test_a_lease_cut_by_its_deadline_ends_for_that_reason(jobs: Rows) -> None:
    key = jobs.plant_expired(deadline_at=ago(41))
    jobs.sql("UPDATE jobs SET deadline_at = lease_expires_at")
    assert requeued_and_failed(jobs) == ([key], [])
    [event] = jobs.events(key)
    assert (event["type"], event["details"]["reason"]) == ("reaper:requeued", "deadline")


def test_a_deadline_without_an_attempt_left_fails_the_job(jobs: Rows) -> None:
    key = jobs.plant_expired(deadline_at=ago(60), attempt_count=3)
    assert requeued_and_failed(jobs) == ([], [key])
    row = jobs.row(key)
    assert (row["fail_code"], row["fail_reason"]) == ("deadline", "deadline")
    assert jobs.event_types(key) == ["reaper:failed(deadline)"]


def test_a_lease_that_ended_before_its_deadline_is_a_lost_worker(jobs: Rows) -> None:
    key = jobs.plant_expired(deadline_at=ahead(60))
    requeued_and_failed(jobs)
    assert jobs.events(key)[0]["details"]["reason"] == "lease_expired"


def test_a_job_that_beats_past_its_deadline_is_reaped(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_runtime": "10m"}}}
    key = jobs.plant(stage="asr")
    lease = claim(Job, key)
    assert lease is not None
    for _ in range(3):
        assert requeued_and_failed(jobs) == ([], [])
        jobs.let_time_pass(key, 250)
        if jobs.row(key)["deadline_at"] > jobs.now():
            lease.heartbeat()
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.events(key)[0]["details"]["reason"] == "deadline"


# What a stage may say.


def test_a_stage_may_fail_its_jobs_at_once(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"mail": {"on_expiry": "fail"}}}
    mail = jobs.plant_expired(stage="mail", max_attempts=9)
    other = jobs.plant_expired(stage="clip", max_attempts=9)
    assert requeued_and_failed(jobs) == ([other], [mail])
    row = jobs.row(mail)
    assert (row["fail_code"], row["fail_reason"]) == ("timeout", "lease_expired")
    assert (row["attempt_count"], row["reap_count"]) == (1, 1)


def test_a_stage_that_budgets_lost_workers_gives_the_attempt_back(
    jobs: Rows, settings: Settings
) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 3}}}
    key = jobs.plant_expired(stage="asr", attempt_count=3, reap_count=1)
    assert requeued_and_failed(jobs) == ([key], [])
    row = jobs.row(key)
    assert (row["attempt_count"], row["reap_count"]) == (2, 2)
    # The record says which attempt it was.
    assert jobs.events(key)[0]["details"]["attempt"] == 3


def test_the_last_worker_of_the_budget_makes_the_job_poison(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 3}}}
    key = jobs.plant_expired(stage="asr", attempt_count=1, reap_count=2)
    assert requeued_and_failed(jobs) == ([], [key])
    row = jobs.row(key)
    assert (row["fail_code"], row["fail_reason"]) == ("poison", "lease_expired")
    assert (row["attempt_count"], row["reap_count"]) == (1, 3)
    assert jobs.event_types(key) == ["reaper:failed(poison)"]


def test_a_job_that_kills_every_worker_stops_at_its_budget(jobs: Rows, settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 4}}}
    key = jobs.plant(stage="asr", max_attempts=1)
    lost_workers = 0
    while claim(Job, key):
        lost_workers += 1
        jobs.set(key, lease_expires_at=ago(1))
        requeued_and_failed(jobs)
        if jobs.row(key)["status"] == "queued":
            jobs.set(key, next_earliest_run_at=ago(1))
    assert lost_workers == 4
    assert jobs.row(key)["fail_code"] == "poison"


def test_the_rows_own_cap_is_never_raised(jobs: Rows) -> None:
    key = jobs.plant(max_attempts=2)
    for _ in range(2):
        assert claim(Job, key)
        jobs.set(key, lease_expires_at=ago(1))
        requeued_and_failed(jobs)
        assert jobs.row(key)["max_attempts"] == 2
        jobs.set(key, next_earliest_run_at=ago(1))
    assert claim(Job, key) is None
    assert jobs.row(key)["attempt_count"] == 2


def test_a_deadline_is_not_counted_against_the_budget_of_lost_workers(
    jobs: Rows, settings: Settings
) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 1}}}
    key = jobs.plant_expired(stage="asr", deadline_at=ago(60))
    assert requeued_and_failed(jobs) == ([key], [])
    assert jobs.row(key)["attempt_count"] == 1


@pytest.mark.parametrize("number", [0, 2**31 - 1])
def test_a_count_at_the_end_of_its_range_stops_no_other_job(
    jobs: Rows, settings: Settings, number: int
) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_reaps": 2}}}
    jobs.plant_expired(stage="asr", reap_count=number, attempt_count=number, max_attempts=number)
    other = jobs.plant_expired(stage="asr")
    assert other in reap([Job]).requeued_ids["jobs"]
