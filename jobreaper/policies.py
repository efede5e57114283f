"""The policy of each stage, and backoff. Pure functions; no Django, no clock.

The SQL statements apply the policies: see ``sql/fragments``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from jobreaper.states import OnExpiry, Status

DEFAULT_BACKOFF_MS: Final = (30_000, 120_000, 600_000)

# A longer lease or delay is a typing error. The limit also keeps every sum within bigint.
LONGEST_MS: Final = 366 * 24 * 3600 * 1000

# Stages are labels of metrics, so their number has to be limited. Stages with a policy have their
# own series; of the others, the first so many of a table.
MOST_STAGES: Final = 50
OTHER_STAGE: Final = "other"


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """The rules of one stage. The default policy has the stage ``""``.

    Durations are in seconds, ``backoff_ms`` in milliseconds: entry *n* is the wait after attempt
    *n*, and the last entry is repeated. ``queue`` and ``priority`` apply to the stage's messages.
    """

    stage: str = ""
    lease_sec: float = 300.0
    sla_factor: float = 0.0
    max_runtime_sec: float | None = None
    stall_after_sec: float | None = None
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


def backoff_ms(policy: StagePolicy, attempt: int) -> int:
    """Return the wait in milliseconds after attempt number ``attempt`` (1 is the first).

    An attempt below 1, as in rows whose worker never counted, waits like the first.
    """
    return policy.backoff_ms[min(max(attempt, 1), len(policy.backoff_ms)) - 1]


def exponential_backoff(base_ms: int, max_ms: int) -> tuple[int, ...]:
    """Return ``min(base · 2^(attempt-1), max)`` as a finite list that ends at ``max_ms``."""
    delays = [min(base_ms, max_ms)]
    while delays[-1] < max_ms:
        delays.append(min(delays[-1] * 2, max_ms))
    return tuple(delays)


# Backoffs that a stage can name.
NAMED_BACKOFFS_MS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"exponential": exponential_backoff(1000, 60_000)}
)


def get_backoff_delay_ms(attempts: int) -> int:
    """Return the wait in milliseconds after ``attempts`` attempts with the backoff
    ``"exponential"``: 1 s after 0 and 1 attempts, then 2 s, 4 s, 8 s and so on up to 60 s.
    """
    return backoff_ms(StagePolicy(backoff_ms=NAMED_BACKOFFS_MS["exponential"]), attempts)


def can_retry(status: str, attempts: int, max_attempts: int = 5) -> bool:
    """Return whether a job may be tried again: it has not succeeded, is not processing, and has
    attempts left. ``LeasedJob.objects.retryable()`` returns the rows for which this is true.
    """
    return status not in (Status.SUCCESS, Status.PROCESSING) and attempts < max_attempts


def capped(delays_ms: Sequence[int], max_ms: int) -> tuple[int, ...]:
    """Return the delays with none above ``max_ms``."""
    return tuple(min(delay, max_ms) for delay in delays_ms)
