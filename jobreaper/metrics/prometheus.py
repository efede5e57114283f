"""The Prometheus collector: all its values come from the database.

So the values are correct whichever process is scraped, without files and without communication
between processes. ``docs/metrics.md`` lists the metrics.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import product
from typing import Final

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from jobreaper import signals
from jobreaper.identity import local_clock
from jobreaper.metrics.readings import Askers, Reading
from jobreaper.metrics.schedules import Schedules
from jobreaper.reaper import totals
from jobreaper.states import Counted, Reason, Status, WorkerKind, WorkerState

logger = logging.getLogger(__name__)

CACHE_SEC: Final = 5.0

MICROSECONDS: Final = 1_000_000

_BY_STAGE: Final = ["table", "stage"]


class JobreaperCollector(Collector):
    """Queries the databases when it is scraped, at most every ``CACHE_SEC``."""

    def __init__(self) -> None:
        self._askers = Askers()
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []
        self._fresh_until = 0.0
        self._errors: list[str] = []

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, without a query."""
        return list(_Page())

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. If a database does not answer, the values that only this database
        knows are left out, and ``jobreaper_up`` is 0.
        """
        with self._lock:
            if local_clock() >= self._fresh_until:
                self._fresh_until = local_clock() + CACHE_SEC
                self._metrics = list(self._ask())
            return self._metrics

    def forget(self, **_: object) -> None:
        """Query again at the next scrape: this process knows that something has changed."""
        self._fresh_until = 0.0

    def _ask(self) -> _Page:
        page = _Page()
        errors: list[str] = []
        # Invalid settings, a router that raises: the page contains other metrics too.
        try:
            readings = self._askers.ask()
            page.fill(readings.values())
            errors = [f"{a}: {error}" for a, r in readings.items() for error in r.errors]
        except Exception as error:
            errors = [repr(error)]
        page.up.add_metric([], 0 if errors else 1)
        if errors and errors != self._errors:
            logger.warning("the metrics are not whole: %s", "; ".join(errors))
        self._errors = errors
        return page


class _Page:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._make_totals()
        self._make_standings()
        self._schedules = Schedules()
        self.up = GaugeMetricFamily(
            "jobreaper_up", "Whether every database answered; if not, what is missing is unknown."
        )

    def _make_totals(self) -> None:
        self.requeues = CounterMetricFamily(
            "reaper_requeues",
            "Jobs whose lease ran out and which the reaper gave back to the queue.",
            labels=_BY_STAGE,
        )
        self.failures = CounterMetricFamily(
            "reaper_failures",
            "Jobs whose lease ran out and which the reaper failed.",
            labels=_BY_STAGE,
        )
        self.worker_lost = CounterMetricFamily(
            "jobreaper_worker_lost",
            "Jobs taken back at once from a worker that was seen to die.",
            labels=[*_BY_STAGE, "outcome"],
        )
        self.taken_back = CounterMetricFamily(
            "jobreaper_taken_back",
            "Jobs taken back from their workers, by reason.",
            labels=["table", "reason"],
        )
        self.stale_writes = CounterMetricFamily(
            "jobreaper_stale_writes", "Rejected writes of stale workers.", labels=["table"]
        )
        self.held = CounterMetricFamily("reaper_held", "Passes that reaped nothing or not all.")
        self.silences = CounterMetricFamily(
            "reaper_common_silences", "How often many workers fell silent at once."
        )
        self.scans = SummaryMetricFamily(
            "reaper_scan_duration_seconds", "How long passes took for a table.", labels=["table"]
        )
        self.latency = SummaryMetricFamily(
            "reaper_detection_latency_seconds",
            "From the end of a lease to the pass that noticed it.",
        )
        self.last_success = GaugeMetricFamily(
            "reaper_last_success_timestamp_seconds",
            "When a pass last left nothing undone; of several tables the one longest ago.",
        )

    def _make_standings(self) -> None:
        self.jobs = GaugeMetricFamily(
            "jobreaper_jobs", "Unfinished jobs, estimated if many.", labels=["table", "status"]
        )
        self.queued = GaugeMetricFamily(
            "jobreaper_queued_jobs", "Queued jobs of the largest queues.", labels=["table", "queue"]
        )
        self.leases = GaugeMetricFamily(
            "jobreaper_leases", "Running jobs by their lease's state.", labels=["table", "state"]
        )
        self.oldest_due = GaugeMetricFamily(
            "jobreaper_oldest_due_age_seconds",
            "How long the oldest job that may be claimed has waited, 0 where there is none.",
            labels=["table"],
        )
        self.refused_rows = GaugeMetricFamily(
            "jobreaper_refused_rows",
            "Jobs whose rows cannot be written, and which are left out until they are tried again.",
            labels=["table"],
        )
        self.workers = GaugeMetricFamily(
            "jobreaper_workers", "Workers by what their process is.", labels=["kind", "state"]
        )

    def __iter__(self) -> Iterator[Metric]:
        for name, family in vars(self).items():
            if not name.startswith("_"):
                yield family
        yield from self._schedules

    def fill(self, readings: Collection[Reading]) -> None:
        """Add the values that the databases returned."""
        self._fill_totals([reading for reading in readings if reading.sums is not None])
        if all(reading.sums is not None for reading in readings):
            self._fill_sums_over_all(readings)
        self._fill_standings(readings)
        self._fill_refused_rows(readings)
        self._fill_workers(readings)
        self._schedules.fill([one for reading in readings for one in reading.schedules])

    def _fill_totals(self, readings: Collection[Reading]) -> None:
        counts: Counter[tuple[str, str, str]] = Counter()
        microseconds: Counter[str] = Counter()
        stages = defaultdict(set)
        for reading in readings:
            for table in reading.tables:
                stages[table].update(totals.known_stages())
            for total in reading.sums_of_tables:
                counts[total.name, total.table, total.stage] += total.count
                stages[total.table].add(total.stage)
                if total.name == Counted.SCANS:
                    microseconds[total.table] += total.microseconds
        for table in sorted(stages):
            # With a sample before the first event, PromQL's increase() includes that event.
            for stage in sorted(stages[table]):
                for name, family, outcome in (
                    (Counted.REQUEUES, self.requeues, []),
                    (Counted.FAILURES, self.failures, []),
                    (Counted.LOST_AND_REQUEUED, self.worker_lost, ["requeued"]),
                    (Counted.LOST_AND_FAILED, self.worker_lost, ["failed"]),
                ):
                    family.add_metric([table, stage, *outcome], counts[name, table, stage])
            for reason in Reason:
                number = counts[f"{Counted.TAKEN_BACK}{reason}", table, ""]
                self.taken_back.add_metric([table, reason], number)
            self.stale_writes.add_metric([table], counts[Counted.STALE_WRITES, table, ""])
            self.scans.add_metric(
                [table],
                count_value=counts[Counted.SCANS, table, ""],
                sum_value=microseconds[table] / MICROSECONDS,
            )

    def _fill_sums_over_all(self, readings: Collection[Reading]) -> None:
        """Fill in the metrics without labels, which would decrease if a database were missing."""
        sums = [total for reading in readings for total in reading.sums_of_tables]
        reaped = [total for total in sums if total.name in (Counted.REQUEUES, Counted.FAILURES)]
        self.latency.add_metric(
            [],
            count_value=sum(total.count for total in reaped),
            sum_value=sum(total.microseconds for total in reaped) / MICROSECONDS,
        )
        successes = [total.last_at for total in sums if total.name == Counted.CLEAN_SCANS]
        self.last_success.add_metric([], min(successes, default=0))
        everything = [total for reading in readings for total in reading.sums or ()]
        for name, family in (
            (Counted.HELD_PASSES, self.held),
            (Counted.COMMON_SILENCES, self.silences),
        ):
            counts = [total.count for total in everything if total.name == name]
            family.add_metric([], sum(counts))

    def _fill_standings(self, readings: Collection[Reading]) -> None:
        jobs: Counter[tuple[str, str]] = Counter()
        leases: Counter[tuple[str, str]] = Counter()
        queues: Counter[tuple[str, str]] = Counter()
        oldest: dict[str, float] = {}
        for reading in readings:
            for table, standing in reading.standings.items():
                jobs[table, Status.QUEUED] += standing.queued
                jobs[table, Status.PROCESSING] += sum(standing.leases.values())
                for state, count in standing.leases.items():
                    leases[table, state] += count
                queues.update({(table, queue): n for queue, n in standing.queues.items()})
                if standing.oldest_due_sec is not None:
                    oldest[table] = max(oldest.get(table, 0.0), standing.oldest_due_sec)
        for labels, count in jobs.items():
            self.jobs.add_metric(labels, count)
        for labels, count in queues.items():
            self.queued.add_metric(labels, count)
        for labels, count in leases.items():
            self.leases.add_metric(labels, count)
        for table, seconds in oldest.items():
            self.oldest_due.add_metric([table], seconds)

    def _fill_refused_rows(self, readings: Collection[Reading]) -> None:
        counts: Counter[str] = Counter()
        for reading in readings:
            if reading.refused is not None:
                counts.update({table: reading.refused.get(table, 0) for table in reading.tables})
        for table, count in counts.items():
            self.refused_rows.add_metric([table], count)

    def _fill_workers(self, readings: Collection[Reading]) -> None:
        """Fill in the workers of all databases, unless one of them does not know its own."""
        counts: Counter[tuple[WorkerKind, WorkerState]] = Counter()
        for reading in readings:
            if reading.workers is None:
                return
            counts.update(reading.workers)
        for kind, state in product(WorkerKind, WorkerState):
            self.workers.add_metric([kind, state], counts[kind, state])


collector: Final = JobreaperCollector()


@cache
def connect() -> None:
    """Add the collector to the default registry of this process.

    Cached, because Django runs ``AppConfig.ready()`` again if ``INSTALLED_APPS`` is overridden.
    """
    REGISTRY.register(collector)
    for signal in (signals.job_reaped, signals.pass_finished):
        signal.connect(collector.forget, dispatch_uid="jobreaper.metrics.prometheus")


@require_safe
@login_not_required
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """A page with the package's own metrics, for projects that have no page for all metrics, or
    that run prometheus_client in its multi-process mode, which does not serve collectors.
    """
    own = CollectorRegistry()
    own.register(collector)
    return HttpResponse(generate_latest(own), content_type=CONTENT_TYPE_LATEST)
