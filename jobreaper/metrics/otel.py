"""OpenTelemetry instruments: what this process has reaped.

As usual in OpenTelemetry, each process counts for itself, and the collector adds the counts up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry import metrics

from jobreaper import signals
from jobreaper.policies import MOST_STAGES, OTHER_STAGE
from jobreaper.reaper import PassResult, ReapedJob, totals
from jobreaper.states import Reason

_meter: Final = metrics.get_meter("jobreaper")
_requeues: Final = _meter.create_counter(
    "reaper.requeues", description="Jobs whose lease ran out, given back to the queue."
)
_failures: Final = _meter.create_counter(
    "reaper.failures", description="Jobs whose lease ran out, failed."
)
_scan_duration_ms: Final = _meter.create_histogram(
    "reaper.scan_duration_ms", unit="ms", description="How long a pass took over a table."
)

# Stages without a policy that have their own name in attributes, by table.
_other_stages: Final[dict[str, set[str]]] = defaultdict(set)


def connect() -> None:
    """Subscribe to core code's signals; called once, at start-up."""
    signals.job_reaped.connect(_reaped, dispatch_uid="jobreaper.metrics.otel.reaped")
    signals.pass_finished.connect(_pass_finished, dispatch_uid="jobreaper.metrics.otel.pass")


def _reaped(table: str, jobs: Iterable[ReapedJob], **_: Any) -> None:
    counts = Counter(
        (job.fail_code is None, job.stage)
        for job in jobs
        # As in the Prometheus counters, jobs that a dead worker's parent gives back do not count.
        if job.reason not in (Reason.WORKER_LOST, Reason.WORKER_STOPPED)
    )
    for (requeues, stage), count in counts.items():
        counter = _requeues if requeues else _failures
        counter.add(count, {"table": table, "stage": _label(table, stage or "")})


def _pass_finished(result: PassResult, **_: Any) -> None:
    for name, table in result.tables.items():
        if table.duration_ms:  # 0 where the pass was held.
            # A pass reads a table's stages all at once.
            _scan_duration_ms.record(table.duration_ms, {"table": name, "stage": ""})


def _label(table: str, stage: str) -> str:
    """Return the stage as an attribute, within a limited number of stages."""
    others = _other_stages[table]
    if stage not in totals.known_stages() and stage not in others:
        if len(others) >= MOST_STAGES:
            return OTHER_STAGE
        others.add(stage)
    return stage
