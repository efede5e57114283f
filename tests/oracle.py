"""The rules that the SQL statements apply, in Python: what tests compare them with."""

from __future__ import annotations

from typing import NamedTuple

from jobreaper.policies import LONGEST_MS, StagePolicy
from jobreaper.states import FailCode, OnExpiry, Reason, Status


class Verdict(NamedTuple):
    """What becomes of a job whose lease ran out."""

    status: Status
    fail_code: FailCode | None
    gives_attempt_back: bool


def lease_seconds(policy: StagePolicy, expected_duration_ms: int | None) -> float:
    """Return the length of a lease in seconds: the longer of the stage's own and the expected
    duration times the stage's SLA factor.

    A deadline is no part of it: the statements cut the lease at the deadline.
    """
    expected = (expected_duration_ms or 0) / 1000 * policy.sla_factor
    return min(max(policy.lease_sec, expected), LONGEST_MS / 1000)


def renewed_end(
    end: float | None, now: float, length: float, deadline: float | None, *, second: float = 1
) -> float:
    """Return when a lease ends after a heartbeat, in a unit of which a second has so many. Its end
    stands while a whole length is left of it. Then it is set a third of the length further than
    that, and at most five minutes.
    """
    last = float("inf") if deadline is None else deadline
    latest = min(now + length + min(length / 3, 300 * second), last)
    stands = end is not None and min(now + length, last) < end <= latest
    return end if stands and end is not None else latest


def verdict(
    policy: StagePolicy,
    *,
    reason: Reason,
    attempt_count: int,
    max_attempts: int,
    reap_count: int,
) -> Verdict:
    """Return what the reaper does to an expired lease.

    ``reap_count`` is the count before this reap. A stage with ``max_reaps`` budgets lost workers
    apart from failed attempts. A worker that overran its deadline, or whose job stalled, was not
    lost, so that budget does not apply.
    """
    code = {
        Reason.LEASE_EXPIRED: FailCode.TIMEOUT,
        Reason.WORKER_STOPPED: FailCode.WORKER_LOST,
    }.get(reason) or FailCode(reason.value)
    if policy.on_expiry is OnExpiry.FAIL:
        return Verdict(Status.FAILED, code, False)
    if reason is Reason.WORKER_STOPPED:
        return Verdict(Status.QUEUED, None, True)
    if policy.max_reaps is not None and reason not in (Reason.DEADLINE, Reason.STALLED):
        if reap_count + 1 >= policy.max_reaps:
            return Verdict(Status.FAILED, FailCode.POISON, False)
        return Verdict(Status.QUEUED, None, True)
    if attempt_count >= max_attempts:
        return Verdict(Status.FAILED, code, False)
    return Verdict(Status.QUEUED, None, False)
