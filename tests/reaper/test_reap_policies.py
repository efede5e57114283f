"""What a policy makes of a lost job: its time to live, its deadline, its budgets."""

from typing import Any

import pytest
from pytest_django import Settings

from jobreaper import claim, reap, tables
from jobreaper.tables import adoption
from project.media.models import AsrJob, Job
from tests.reaper.passes import assert_left_alone, requeued_and_failed
from tests.rows import Rows, ago, ahead

# No lease at all.


@pytest.fixture
def ttl_of_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table `asr_jobs` gives workers from before leases ten minutes."""
    known: dict[Any, Any] = adoption._tables
    monkeypatch.setitem(known, AsrJob, tables.table_of(AsrJob))
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
