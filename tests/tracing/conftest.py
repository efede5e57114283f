"""Spans and measurements kept in memory, by a real SDK.

A process sets its providers once and for all, so the spans of other tests are dropped by a sampler.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from tests.committed import transactional_db

__all__ = ["transactional_db"]

Points = dict[tuple[str, str], float]


class OnlyInTests(Sampler):
    """Drops every span, except while a test looks at them."""

    records = False

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> SamplingResult:
        decision = Decision.RECORD_AND_SAMPLE if self.records else Decision.DROP
        return SamplingResult(decision, attributes)

    def get_description(self) -> str:
        return type(self).__name__


class Telemetry:
    """The providers of this process."""

    def __init__(self) -> None:
        self.sampler = OnlyInTests()
        self.exporter = InMemorySpanExporter()
        tracers = TracerProvider(sampler=self.sampler)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(tracers)
        since_last_read = AggregationTemporality.DELTA
        self.reader = InMemoryMetricReader(
            preferred_temporality={Counter: since_last_read, Histogram: since_last_read}
        )
        metrics.set_meter_provider(MeterProvider([self.reader]))


@pytest.fixture(scope="session")
def telemetry() -> Telemetry:
    return Telemetry()


class Spans:
    """Every span that has ended in this test."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self.exporter = exporter
        self.tracer = trace.get_tracer("tests")

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def runs(self) -> Sequence[ReadableSpan]:
        return self.named("jobreaper.run")


@pytest.fixture(autouse=True)
def no_span_of_others() -> Iterator[None]:
    """A run that a test of another folder abandoned may have left its span behind."""
    token = context.attach(context.Context())
    yield
    context.detach(token)


@pytest.fixture
def spans(telemetry: Telemetry) -> Iterator[Spans]:
    telemetry.exporter.clear()
    telemetry.sampler.records = True
    yield Spans(telemetry.exporter)
    telemetry.sampler.records = False


class Measured:
    """What the instruments have counted in this test."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        reader.get_metrics_data()
        self.reader = reader

    def points(self, value: str = "value") -> dict[str, Points]:
        """Return each instrument's values by table and stage, and start from 0 again."""
        data = self.reader.get_metrics_data()
        found: dict[str, Points] = {}
        for resource in data.resource_metrics if data else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                points = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert set(attributes) == {"table", "stage"}
                    key = (str(attributes["table"]), str(attributes["stage"]))
                    points[key] = getattr(point, value, 0)
        return found


@pytest.fixture
def measured(telemetry: Telemetry) -> Measured:
    return Measured(telemetry.reader)
