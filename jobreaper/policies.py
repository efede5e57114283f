"""Lease length, backoff and verdict for each stage. Pure functions; no Django, no clock.

The SQL statements evaluate the same rules; ``tests/unit`` checks the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jobreaper.states import FailCode, OnExpiry, Reason, Status

DEFAULT_BACKOFF_MS: Final = (30_000, 120_000, 600_000)

# A lease or a delay longer than this is a typing error, and keeps every sum inside bigint.
LONGEST_MS: Final = 366 * 24 * 3600 * 1000

# In metrics, a stage for each job would be a series for each job. Stages with a policy have their
# own; of the others, the first so many of a table.
MOST_STAGES: Final = 50
OTHER_STAGE: Final = "other"


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """The rules of one stage. The default policy has the stage ``""``.

    Durations are seconds, ``backoff_ms`` milliseconds: entry *n* is the wait after attempt *n*, and
    the last entry is repeated. ``queue`` and ``priority`` are those of the stage's messages.
    """

    stage: str = ""
    lease_sec: float = 300.0
    sla_factor: float = 0.0
    max_runtime_sec: float | None = None
    backoff_ms: tuple[int, ...] = DEFAULT_BACKOFF_MS
    on_expiry: OnExpiry = OnExpiry.REQUEUE
    max_reaps: int | None = None
    ttl_sec: float | None = None
    max_running: int | None = None
    queue: str | None = None
    priority: int | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the policy as a JSON-ready row for the SQL statements."""
        return asdict(self)


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


def backoff_ms(policy: StagePolicy, attempt: int) -> int:
    """Return the wait in milliseconds after attempt number ``attempt`` (1 is the first).

    An attempt below 1, as on rows whose worker never counted, waits like the first.
    """
    return policy.backoff_ms[min(max(attempt, 1), len(policy.backoff_ms)) - 1]


def exponential_backoff(base_ms: int, max_ms: int) -> tuple[int, ...]:
    """Return ``min(base · 2^(attempt-1), max)`` as a finite list that ends at ``max_ms``."""
    delays = [min(base_ms, max_ms)]
    while delays[-1] < max_ms:
        delays.append(min(delays[-1] * 2, max_ms))
    return tuple(delays)


# Backoffs that a stage may ask for by name.
NAMED_BACKOFFS_MS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"exponential": exponential_backoff(1000, 60_000)}
)


def get_backoff_delay_ms(attempts: int) -> int:
    """Return the wait in milliseconds after ``attempts`` attempts by the backoff ``"exponential"``:
    1 s for none and one, then 2 s, 4 s, 8 s and so on, 60 s at most.
    """
    return backoff_ms(StagePolicy(backoff_ms=NAMED_BACKOFFS_MS["exponential"]), attempts)


def can_retry(status: str, attempts: int, max_attempts: int = 5) -> bool:
    """Return whether a job may be tried again: it has not succeeded, is not being worked on, and
    has attempts left. ``LeasedJob.objects.retryable()`` are the rows of which that is true.
    """
    return status not in (Status.SUCCESS, Status.PROCESSING) and attempts < max_attempts


def capped(delays_ms: Sequence[int], max_ms: int) -> tuple[int, ...]:
    """Return the delays with none above ``max_ms``."""
    return tuple(min(delay, max_ms) for delay in delays_ms)


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
    apart from failed attempts. A worker that overran its deadline was not lost, so that budget does
    not apply to a deadline.
    """
    code = FailCode.TIMEOUT if reason is Reason.LEASE_EXPIRED else FailCode(reason.value)
    if policy.on_expiry is OnExpiry.FAIL:
        return Verdict(Status.FAILED, code, False)
    if policy.max_reaps is not None and reason is not Reason.DEADLINE:
        if reap_count + 1 >= policy.max_reaps:
            return Verdict(Status.FAILED, FailCode.POISON, False)
        return Verdict(Status.QUEUED, None, True)
    if attempt_count >= max_attempts:
        return Verdict(Status.FAILED, code, False)
    return Verdict(Status.QUEUED, None, False)
