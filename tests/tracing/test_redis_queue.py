"""Spans of the Redis queue: one for each run of a job, below the span that created the job."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq import signals, trace_ids, tracing
from jobreaper.redisq.job import Job
from jobreaper.redisq.loading import from_document
from tests.redisq.listening import own_receivers
from tests.tracing.conftest import Spans

JOB = Job(id="job-1", filepath="/data/1.pdf", retries=1)
NAME = "jobreaper.redisq.run"


@pytest.fixture(autouse=True)
def connected() -> Iterator[None]:
    with own_receivers():
        tracing.connect()
        yield


def run(job: Job, end: Any, error: BaseException | None = None, **arguments: Any) -> None:
    """Send what a worker sends about one run."""
    about: dict[str, Any] = {"worker_id": "w-1", "queue": "q:high", "job": job}
    signals.job_fetched.send(sender=object, **about)
    with trace.get_tracer("handler").start_as_current_span("handler's own"):
        pass
    signals.run_ended.send(sender=object, **about, error=error, duration_sec=0.1)
    end.send(sender=object, **about, **arguments)


def test_a_run_is_a_span_below_the_one_that_created_the_job(spans: Spans) -> None:
    with spans.tracer.start_as_current_span("upload"):
        creation = trace_ids.begin()
        creation.end("q:high", "job-1")
    job = replace(JOB, trace_id=creation.trace_id, span_id=creation.span_id)
    run(job, signals.job_completed, duration_sec=0.1)
    span, upload, inner = spans.one(NAME), spans.one("upload"), spans.one("handler's own")
    created = spans.one("jobreaper.redisq.enqueue")
    assert (created.kind, span.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert created.parent is not None
    assert created.parent.span_id == upload.context.span_id
    assert dict(created.attributes or {}) == {"jobreaper.queue": "q:high", "jobreaper.job": "job-1"}
    assert span.parent is not None
    assert span.parent.span_id == created.context.span_id
    assert inner.parent is not None
    assert inner.parent.span_id == span.context.span_id
    assert inner.context.trace_id == span.context.trace_id == upload.context.trace_id
    attributes = dict(span.attributes or {})
    assert attributes["jobreaper.queue"] == "q:high"
    assert attributes["jobreaper.job"] == "job-1"
    assert attributes["jobreaper.outcome"] == "completed"
    assert attributes["jobreaper.retries"] == 1
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [("", ""), ("x" * 32, "y" * 16), ("0" * 32, "0" * 16), ("a" * 31, "b" * 16), ("A" * 32, "")],
)
def test_ids_that_are_none_begin_a_new_trace(spans: Spans, trace_id: str, span_id: str) -> None:
    job = replace(JOB, trace_id=trace_id, span_id=span_id)
    run(job, signals.job_completed, duration_sec=0.1)
    assert spans.one(NAME).parent is None


@pytest.mark.parametrize(
    ("end", "outcome", "arguments"),
    [
        (signals.job_retried, "retried", {"delay_sec": 1}),
        (signals.job_dead_lettered, "dead_lettered", {"reason": "failed"}),
        (signals.job_released, "released", {}),
        (signals.stale_completion, "stale", {"verb": "finish"}),
    ],
)
def test_each_outcome_is_told_without_the_message_of_an_error(
    spans: Spans, end: Any, outcome: str, arguments: dict[str, Any]
) -> None:
    run(JOB, end, ValueError("what the job contains"), **arguments)
    span = spans.one(NAME)
    assert dict(span.attributes or {})["jobreaper.outcome"] == outcome
    assert dict(span.attributes or {})["error.type"] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert "what the job contains" not in span.to_json()


def test_a_run_whose_end_was_never_told_ends_with_the_next(spans: Spans) -> None:
    signals.job_fetched.send(sender=object, worker_id="w-1", queue="q", job=JOB)
    run(JOB, signals.job_completed, duration_sec=0.1)
    outcomes = [dict(each.attributes or {})["jobreaper.outcome"] for each in spans.named(NAME)]
    assert outcomes == ["unknown", "completed"]


def test_tracing_is_off_by_default_and_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing.install(from_document({})) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    enabled = {"tracing": {"enabled": True, "endpoint": "http://localhost:4318"}}
    with pytest.raises(ConfigurationError, match="extra otlp"):
        tracing.install(from_document({"observability": enabled}))


def test_jobs_of_one_scan_are_told_apart() -> None:
    one, other = trace_ids.begin(), trace_ids.begin()
    assert one[:2] != other[:2]
    assert (len(one.trace_id), len(one.span_id)) == (32, 16)


def test_a_file_that_got_no_job_leaves_no_span(spans: Spans) -> None:
    trace_ids.begin()
    assert spans.named("jobreaper.redisq.enqueue") == []
