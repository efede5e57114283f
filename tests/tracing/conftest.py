"""Spans and measurements kept in memory, by a real SDK."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from jobreaper import tracing
from jobreaper.metrics import otel
from tests.committed import transactional_db

__all__ = ["transactional_db"]


class Spans:
    """Every span that has ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def runs(self) -> list[ReadableSpan]:
        return self.named("jobreaper.run")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    # The process's own provider can be set once and never taken back: other tests trace nothing.
    found = Spans()
    monkeypatch.setattr(tracing, "_tracer", found.provider.get_tracer("jobreaper"))
    return found


Points = dict[tuple[str, str], float]


class Measured:
    """What the instruments have counted."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def points(self, name: str, value: str = "value") -> Points:
        """Return an instrument's values by table and stage."""
        data = self.reader.get_metrics_data()
        found: Points = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            assert point.attributes is not None
                            assert set(point.attributes) == {"table", "stage"}
                            key = (str(point.attributes["table"]), str(point.attributes["stage"]))
                            found[key] = getattr(point, value)
        return found


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    found = Measured()
    with monkeypatch.context() as patch:
        instruments = otel.Instruments(found.provider.get_meter("jobreaper"))
        patch.setattr(otel, "_instruments", instruments)
        yield found
    found.provider.shutdown()
