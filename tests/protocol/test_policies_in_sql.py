"""The statements evaluate the rules of `jobreaper.policies`: each is held against the other."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobreaper import claim, conf, policies, reap
from jobreaper.policies import LONGEST_MS
from jobreaper.states import OnExpiry, Reason, Status
from project.media.models import Job
from tests import oracle
from tests.rows import Rows

YEAR_SEC = LONGEST_MS // 1000

durations = st.integers(1, YEAR_SEC * 1000).map(lambda ms: ms / 1000)

stage_options = st.fixed_dictionaries(
    {},
    optional={
        "lease": durations,
        "sla_factor": st.integers(0, 10**6) | st.floats(0, 100),
        "max_runtime": st.none() | durations,
        "backoff": st.lists(st.integers(0, LONGEST_MS).map(lambda ms: ms / 1000), min_size=1),
        "on_expiry": st.sampled_from(OnExpiry),
        "max_reaps": st.none() | st.integers(1, 5),
    },
)


class Lost(NamedTuple):
    """A job whose lease ran out. Where it has a deadline, the lease ended that much before it."""

    stage: str | None
    attempt_count: int
    max_attempts: int
    reap_count: int
    deadline_after_sec: int | None


lost_jobs = st.builds(
    Lost,
    stage=st.sampled_from(["it", "clip", None, "unheard-of"]),
    attempt_count=st.integers(0, 5),
    max_attempts=st.integers(1, 5),
    reap_count=st.integers(0, 5),
    deadline_after_sec=st.none() | st.sampled_from([-1, 0, 1]),
)

by_example = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def given_to_django(default_lease_sec: float, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "DEFAULT_LEASE_SEC": default_lease_sec,
        "STAGES": {"it": options},
        "HEARTBEAT_SEC": 0.0001,
        "RECOVERY_GRACE_SEC": 0,
    }


@given(durations, stage_options, st.lists(lost_jobs, min_size=1, max_size=4))
@by_example
def test_verdict_and_backoff_are_those_of_the_policies(
    jobs: Rows, default_lease_sec: float, options: dict[str, Any], lost: list[Lost]
) -> None:
    planted = {jobs.plant_expired(**columns_of(job)): job for job in lost}
    with override_settings(JOBREAPER=given_to_django(default_lease_sec, options)):
        dry = reap([Job], dry_run=True)
        result = reap([Job])
        assert result.all_errors == []
        for key, job in planted.items():
            policy = conf.settings().policy(job.stage)
            cut = job.deadline_after_sec is not None and job.deadline_after_sec <= 0
            reason = Reason.DEADLINE if cut else Reason.LEASE_EXPIRED
            verdict = oracle.verdict(
                policy,
                reason=reason,
                attempt_count=job.attempt_count,
                max_attempts=job.max_attempts,
                reap_count=job.reap_count,
            )
            row = jobs.row(key)
            assert row["status"] == verdict.status
            assert row["fail_code"] == verdict.fail_code
            assert row["attempt_count"] == max(job.attempt_count - verdict.gives_attempt_back, 0)
            event = jobs.events(key)[-1]
            assert event["details"]["reason"] == reason
            requeued = verdict.status is Status.QUEUED
            for outcome in (dry, result):
                assert (key in outcome.requeued_ids["jobs"]) == requeued
                assert (key in outcome.failed_ids["jobs"]) == (not requeued)
            if requeued:
                waits = row["next_earliest_run_at"] - datetime.fromisoformat(event["at"])
                expected = policies.backoff_ms(policy, job.attempt_count)
                assert waits == timedelta(milliseconds=expected)


def columns_of(job: Lost) -> dict[str, Any]:
    columns = job._asdict()
    after = columns.pop("deadline_after_sec")
    if after is None:
        return columns
    # Both times are counted from the same statement, so the difference is exact.
    end = timedelta(seconds=-100)
    return {**columns, "lease_expires_at": end, "deadline_at": end + timedelta(seconds=after)}


@given(
    durations,
    stage_options,
    st.lists(st.none() | st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    st.sampled_from(["it", "asr", None, "unheard-of"]),
)
@example(300, {"sla_factor": 100}, [2**31 - 1], "it")
@example(300, {"max_runtime": 300}, [None], "it")
@by_example
def test_the_length_of_a_lease_is_that_of_the_policies_at_claim_and_at_every_beat(
    jobs: Rows,
    default_lease_sec: float,
    options: dict[str, Any],
    expected_ms: list[int | None],
    stage: str | None,
) -> None:
    keys = [jobs.plant(stage=stage, expected_duration_ms=ms) for ms in expected_ms]
    with override_settings(JOBREAPER=given_to_django(default_lease_sec, options)):
        policy = conf.settings().policy(stage)
        for key, ms in zip(keys, expected_ms, strict=True):
            lease = claim(Job, key)
            assert lease is not None
            seconds = oracle.lease_seconds(policy, ms)
            row = jobs.row(key)
            cut = min(seconds, policy.max_runtime_sec or seconds)
            assert_lasts(row["claimed_at"], row["lease_expires_at"], cut)
            if policy.max_runtime_sec is not None:
                assert_lasts(row["claimed_at"], row["deadline_at"], policy.max_runtime_sec)
            # A fresh lease, not a moment's, so that the beat comes before its end.
            if cut > 60:
                for _ in range(2):
                    before = row["lease_expires_at"]
                    lease.heartbeat()
                    row = jobs.row(key)
                    end, now, deadline = (
                        at and (at - row["claimed_at"]).total_seconds()
                        for at in (before, row["last_heartbeat_at"], row["deadline_at"])
                    )
                    end = oracle.renewed_end(end, now, seconds, deadline)
                    assert_lasts(row["claimed_at"], row["lease_expires_at"], end)


def assert_lasts(start: datetime, end: datetime, seconds: float) -> None:
    # PostgreSQL rounds to microseconds, and so does Python, not always the same way.
    assert abs((end - start).total_seconds() - seconds) <= 2e-6


@pytest.mark.parametrize("stage", ["", None, "unheard-of"])
def test_a_row_whose_stage_has_no_policy_follows_the_default_one(
    jobs: Rows, stage: str | None
) -> None:
    key = jobs.plant(stage=stage)
    with override_settings(JOBREAPER={"DEFAULT_LEASE_SEC": 1000}):
        claim(Job, key)
    row = jobs.row(key)
    assert row["lease_expires_at"] - row["claimed_at"] == timedelta(seconds=1000)
