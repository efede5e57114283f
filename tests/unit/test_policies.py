"""Lease length, backoff and verdict: the rules as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.policies import (
    LONGEST_MS,
    StagePolicy,
    backoff_ms,
    capped,
    exponential_backoff,
)
from jobreaper.states import FailCode, OnExpiry, Reason, Status
from tests.oracle import Verdict, lease_seconds, verdict

REQUEUED = Verdict(Status.QUEUED, None, False)
GIVEN_BACK = Verdict(Status.QUEUED, None, True)


def failed(code: FailCode) -> Verdict:
    return Verdict(Status.FAILED, code, False)


def judge(
    policy: StagePolicy,
    *,
    reason: Reason = Reason.LEASE_EXPIRED,
    attempt: int = 1,
    of: int = 3,
    reaps: int = 0,
) -> Verdict:
    return verdict(policy, reason=reason, attempt_count=attempt, max_attempts=of, reap_count=reaps)


@pytest.mark.parametrize(
    ("expected_duration_ms", "seconds"),
    [
        pytest.param(None, 300, id="nothing expected"),
        pytest.param(0, 300, id="no time expected"),
        pytest.param(50_000, 300, id="as long as the stage's own"),
        pytest.param(50_001, 300.006, id="longer than the stage's own"),
        pytest.param(600_000, 3600, id="much longer"),
    ],
)
def test_a_lease_is_the_longer_of_the_stages_own_and_what_the_work_needs(
    expected_duration_ms: int | None, seconds: float
) -> None:
    policy = StagePolicy(lease_sec=300, sla_factor=6)
    assert lease_seconds(policy, expected_duration_ms) == pytest.approx(seconds)


def test_a_lease_is_never_longer_than_a_year() -> None:
    policy = StagePolicy(sla_factor=1_000_000)
    assert lease_seconds(policy, 2**31 - 1) == LONGEST_MS / 1000


def test_without_a_factor_the_expected_duration_is_left_out() -> None:
    assert lease_seconds(StagePolicy(lease_sec=60), 3_600_000) == 60


def test_the_default_backoff_is_half_a_minute_two_and_ten_minutes_and_ten_again() -> None:
    waits = [backoff_ms(StagePolicy(), attempt) for attempt in range(1, 6)]
    assert waits == [30_000, 120_000, 600_000, 600_000, 600_000]


@pytest.mark.parametrize("attempt", [0, -1])
def test_a_worker_that_never_counted_waits_like_a_first_attempt(attempt: int) -> None:
    assert backoff_ms(StagePolicy(), attempt) == 30_000


def test_an_exponential_backoff_doubles_from_the_base_to_the_maximum() -> None:
    assert exponential_backoff(1000, 5000) == (1000, 2000, 4000, 5000)


def test_a_base_above_the_maximum_is_cut() -> None:
    assert exponential_backoff(5000, 1000) == (1000,)


@given(st.integers(1, LONGEST_MS), st.integers(1, LONGEST_MS), st.integers(1, 60))
def test_an_exponential_backoff_keeps_to_its_formula(base: int, longest: int, attempt: int) -> None:
    policy = StagePolicy(backoff_ms=exponential_backoff(base, longest))
    assert backoff_ms(policy, attempt) == min(base * 2 ** (attempt - 1), longest)


def test_capped_delays_keep_their_number() -> None:
    assert capped((1, 20, 300), 20) == (1, 20, 20)


def test_a_lost_worker_is_requeued_while_attempts_are_left() -> None:
    assert judge(StagePolicy(), attempt=2) == REQUEUED


@pytest.mark.parametrize("attempt", [3, 4])
def test_a_lost_worker_ends_the_job_when_no_attempt_is_left(attempt: int) -> None:
    assert judge(StagePolicy(), attempt=attempt) == failed(FailCode.TIMEOUT)


def test_an_overrun_deadline_is_requeued_while_attempts_are_left() -> None:
    assert judge(StagePolicy(), reason=Reason.DEADLINE, attempt=2) == REQUEUED


def test_an_overrun_deadline_ends_the_job_when_no_attempt_is_left() -> None:
    last = judge(StagePolicy(), reason=Reason.DEADLINE, attempt=3)
    assert last == failed(FailCode.DEADLINE)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.LEASE_EXPIRED, FailCode.TIMEOUT),
        (Reason.DEADLINE, FailCode.DEADLINE),
        (Reason.WORKER_LOST, FailCode.WORKER_LOST),
    ],
)
def test_a_stage_may_ask_to_fail_at_the_first_expiry(reason: Reason, code: FailCode) -> None:
    policy = StagePolicy(on_expiry=OnExpiry.FAIL, max_reaps=5)
    assert judge(policy, reason=reason) == failed(code)


@pytest.mark.parametrize("reason", [Reason.LEASE_EXPIRED, Reason.WORKER_LOST])
def test_a_stage_that_budgets_lost_workers_gives_the_attempt_back(reason: Reason) -> None:
    assert judge(StagePolicy(max_reaps=2), reason=reason, attempt=3, reaps=0) == GIVEN_BACK


@pytest.mark.parametrize("reaps", [1, 2])
def test_the_last_budgeted_lost_worker_ends_the_job_as_poison(reaps: int) -> None:
    assert judge(StagePolicy(max_reaps=2), attempt=1, reaps=reaps) == failed(FailCode.POISON)


def test_a_deadline_is_no_lost_worker() -> None:
    policy = StagePolicy(max_reaps=1)
    assert judge(policy, reason=Reason.DEADLINE) == REQUEUED
    assert judge(policy, reason=Reason.DEADLINE, attempt=3) == failed(FailCode.DEADLINE)


@given(
    max_reaps=st.none() | st.integers(1, 5),
    on_expiry=st.sampled_from(OnExpiry),
    max_attempts=st.integers(1, 5),
)
def test_a_job_that_kills_every_worker_stops_at_its_cap(
    max_reaps: int | None, on_expiry: OnExpiry, max_attempts: int
) -> None:
    policy = StagePolicy(max_reaps=max_reaps, on_expiry=on_expiry)
    attempts = reaps = 0
    while True:
        attempts += 1
        outcome = judge(policy, attempt=attempts, of=max_attempts, reaps=reaps)
        reaps += 1
        if outcome.status is Status.FAILED:
            break
        attempts -= outcome.gives_attempt_back
    budget = 1 if on_expiry is OnExpiry.FAIL else max_reaps or max_attempts
    assert reaps == budget


def test_a_policy_becomes_a_row_of_plain_json() -> None:
    row = StagePolicy(stage="clip", on_expiry=OnExpiry.FAIL).as_row()
    assert row["stage"] == "clip"
    assert row["on_expiry"] == "fail"
    assert row["max_reaps"] is None
