"""OpenTelemetry instruments: what this process has reaped.

Each process counts for itself, as OpenTelemetry has it; the collector adds them up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry import metrics

from jobreaper import signals, totals
from jobreaper.policies import MOST_STAGES, OTHER_STAGE
from jobreaper.reaper import PassResult, ReapedJob
from jobreaper.states import Reason

_meter: Final = metrics.get_meter("jobreaper")
_requeues: Final = _meter.create_counter(
    "reaper.requeues", description="Jobs whose lease ran out and which went back to the queue."
)
_failures: Final = _meter.create_counter(
    "reaper.failures", description="Jobs whose lease ran out and which were failed."
)
_scan_duration: Final = _meter.create_histogram(
    "reaper.scan_duration_ms", unit="ms", description="How long a pass took over a table."
)

# Stages without a policy that have a name of their own, by table.
_other_stages: Final[dict[str, set[str]]] = defaultdict(set)


def connect() -> None:
    """Subscribe to core code's signals; called once, at start-up."""
    signals.job_reaped.connect(_reaped, dispatch_uid="jobreaper.metrics.otel.reaped")
    signals.pass_finished.connect(_pass_finished, dispatch_uid="jobreaper.metrics.otel.pass")


def _reaped(table: str, jobs: Iterable[ReapedJob], **_: Any) -> None:
    for job in jobs:
        # As in Prometheus' counters: what a dying worker's parent gives back is not the reaper's.
        if job.reason != Reason.WORKER_LOST:
            instrument = _requeues if job.fail_code is None else _failures
            instrument.add(1, {"table": table, "stage": _label(table, job.stage or "")})


def _pass_finished(result: PassResult, **_: Any) -> None:
    for name, table in result.tables.items():
        if table.duration_ms:  # 0 where the pass was held.
            # A pass reads a table's stages all at once.
            _scan_duration.record(table.duration_ms, {"table": name, "stage": ""})


def _label(table: str, stage: str) -> str:
    """Return the stage as an attribute: a stage for each job would be a series for each job."""
    others = _other_stages[table]
    if stage not in totals.known_stages() and stage not in others:
        if len(others) >= MOST_STAGES:
            return OTHER_STAGE
        others.add(stage)
    return stage
