"""OpenTelemetry: a span for each run of a job, below the span in which the job was created.

Spans are made wherever the process has a tracer provider. ``tracing.enabled`` sets one up, which
needs the extra ``otlp``.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq import signals
from jobreaper.redisq.config import Config
from jobreaper.redisq.job import Job

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

_tracer: Final = trace.get_tracer("jobreaper.redisq")
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")
_SPAN_ID: Final = re.compile("[0-9a-f]{16}")

# Where OTLP over HTTP takes spans, if the endpoint is only a server.
_PATH: Final = "/v1/traces"

_ENDS: Final = {
    signals.job_completed: "completed",
    signals.job_retried: "retried",
    signals.job_dead_lettered: "dead_lettered",
    signals.job_released: "released",
    signals.stale_completion: "stale",
}


class _Run(NamedTuple):
    span: Span
    before: Context


# By worker: each has one job at a time.
_runs: Final[dict[str, _Run]] = {}


def connect() -> None:
    """Subscribe to the signals of the queue."""
    signals.job_fetched.connect(_begin, dispatch_uid=f"{__name__}.begin")
    signals.run_ended.connect(_handler_ended, dispatch_uid=f"{__name__}.handler_ended")
    for signal, outcome in _ENDS.items():
        receiver = partial(_end, outcome)
        signal.connect(receiver, weak=False, dispatch_uid=f"{__name__}.end")


def install(config: Config) -> TracerProvider | None:
    """Set up what sends spans to ``tracing.endpoint``, by OTLP over HTTP, if ``tracing.enabled``.
    Return it: ``shutdown()`` sends what is left. Without an endpoint, the variables of
    OpenTelemetry count.

    Raises:
        ConfigurationError: a package is missing.
    """
    tracing = config.observability.tracing
    if not tracing.enabled:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(
            "observability.tracing.enabled (OBSERVABILITY_TRACING_ENABLED) needs the extra otlp: "
            "pip install 'jobreaper[redisq,otlp]'"
        ) from error
    endpoint = tracing.endpoint
    if endpoint is not None and endpoint.partition("://")[2].rstrip("/").count("/") == 0:
        endpoint = endpoint.rstrip("/") + _PATH
    # The service's name in the environment counts before this one.
    resource = Resource.create({"service.name": "jobreaper.redisq"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    return provider


def _begin(worker_id: str, queue: str, job: Job, **_: Any) -> None:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # No SDK. Quick jobs would feel what follows.
    if (left := _runs.get(worker_id)) is not None:
        # Nobody told of its end.
        context.attach(left.before)
        _finish(worker_id, "unknown")
    span = _tracer.start_span(
        "jobreaper.redisq.run",
        context=_parent(job),
        kind=SpanKind.CONSUMER,
        attributes={
            "messaging.system": "redis",
            "messaging.destination.name": queue,
            "messaging.message.id": job.id,
            "jobreaper.queue": queue,
            "jobreaper.job": job.id,
            "jobreaper.worker": worker_id,
            "jobreaper.retries": job.retries,
        },
    )
    _runs[worker_id] = _Run(span, context.get_current())
    # Spans of the handler are below it.
    context.attach(trace.set_span_in_context(span))


def _parent(job: Job) -> Context | None:
    """Return the context of the span in which the job was created, if the job says so."""
    if not (_TRACE_ID.fullmatch(job.trace_id) and _SPAN_ID.fullmatch(job.span_id)):
        return None
    created = SpanContext(
        trace_id=int(job.trace_id, 16),
        span_id=int(job.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(NonRecordingSpan(created)) if created.is_valid else None


def _handler_ended(worker_id: str, error: BaseException | None, **_: Any) -> None:
    run = _runs.get(worker_id)
    if run is None:
        return
    context.attach(run.before)
    if error is not None:
        # Its message may quote what the job contains.
        run.span.set_attribute("error.type", type(error).__qualname__)
        run.span.set_status(Status(StatusCode.ERROR))


def _end(outcome: str, /, worker_id: str | None, **_: Any) -> None:
    if worker_id is not None:
        _finish(worker_id, outcome)


def _finish(worker_id: str, outcome: str) -> None:
    run = _runs.pop(worker_id, None)
    if run is not None:
        run.span.set_attribute("jobreaper.outcome", outcome)
        run.span.end()
