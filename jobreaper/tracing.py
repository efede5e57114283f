"""OpenTelemetry spans: one for each pass, one for each leased run.

A run belongs to the trace in which its job was made, and links to the attempt before it, which may
have died: ``docs/tracing.md``. Only a run that is recorded costs a statement.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from contextvars import Token
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from celery import current_app, current_task
from celery.signals import before_task_publish
from django.db import transaction
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobreaper import signals
from jobreaper.celery.task import LeasedTask
from jobreaper.db import fetch
from jobreaper.leases import Lease
from jobreaper.reaper import PassResult
from jobreaper.states import Trigger

_tracer: Final = trace.get_tracer("jobreaper")
_w3c: Final = TraceContextTextMapPropagator()

_ENDINGS: Final = {
    signals.job_finished: "finished",
    signals.job_retried: "retried",
    signals.job_failed: "failed",
    signals.job_released: "released",
    signals.lease_lost: "lost",
    signals.stale_write_rejected: "lost",
}


class _Run(NamedTuple):
    span: Span
    token: Token[Context]


_runs: Final[WeakKeyDictionary[Lease, _Run]] = WeakKeyDictionary()


def connect() -> None:
    """Subscribe to core code's signals and to Celery's; called once, at start-up."""
    for signal, receiver in (
        (signals.run_started, _run_started),
        (signals.run_ended, _run_ended),
        (signals.pass_finished, _pass_finished),
    ):
        signal.connect(receiver, dispatch_uid=f"jobreaper.tracing.{receiver.__name__}")
    for signal, outcome in _ENDINGS.items():
        signal.connect(
            partial(_note_outcome, outcome=outcome),
            weak=False,
            dispatch_uid=signals.OwnReceiver("tracing"),
        )
    before_task_publish.connect(_carry, dispatch_uid="jobreaper.tracing")


def _carry(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Put the present trace context into the message of a leased task."""
    if isinstance(current_app.tasks.get(sender), LeasedTask):
        propagate.inject(headers)


def _run_started(lease: Lease, **_: Any) -> None:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # No SDK. Quick jobs would feel what follows.
    around = trace.get_current_span().get_span_context()
    span = _tracer.start_span(
        "jobreaper.run",
        context=_parent(lease, around),
        kind=SpanKind.CONSUMER,
        attributes=_known(
            table=lease.table.name,
            stage=lease.stage,
            job=str(lease.pk),
            attempt=lease.attempt,
            epoch=lease.epoch,
            worker=lease.worker,
        ),
    )
    _runs[lease] = _Run(span, context.attach(trace.set_span_in_context(span)))
    if not span.is_recording():
        return
    if around.is_valid and around.trace_id != span.get_span_context().trace_id:
        span.add_link(around)
    _link_to_attempt_before(lease, span)


def _parent(lease: Lease, around: SpanContext) -> Context | None:
    """Return the context a run belongs to: that in which its job was made, where the row knows it,
    else the current one, else that of the Celery message.
    """
    traceparent = getattr(lease.job, "traceparent", None)
    if traceparent:
        return _w3c.extract({"traceparent": traceparent})
    if around.is_valid or not current_task:
        return None
    return propagate.extract(current_task.request, getter=_MESSAGE)


class _MessageGetter(Getter[Any]):
    """Reads the headers of a Celery message, which are attributes of the task's request."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        value = getattr(carrier, key, None)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Any) -> list[str]:
        return list(vars(carrier))


_MESSAGE: Final = _MessageGetter()


def _link_to_attempt_before(lease: Lease, span: Span) -> None:
    connection = lease.table.connection(lease.alias)
    # In a transaction of the caller's a failure must not take the job's own writes with it.
    nested = transaction.atomic(using=lease.alias) if connection.in_atomic_block else nullcontext()
    with nested:
        rows = fetch(
            connection,
            lease.table.statement("traced"),
            {
                "id": lease.key,
                "worker": lease.worker,
                "stage": lease.stage,
                "attempt": lease.attempt,
                "epoch": lease.epoch,
                "traceparent": _traceparent(span),
            },
        )
    for traceparent, attempt, epoch in rows:
        before = trace.get_current_span(_w3c.extract({"traceparent": traceparent}))
        span.add_link(before.get_span_context(), _known(attempt=attempt, epoch=epoch))


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, trace.set_span_in_context(span))
    return carrier["traceparent"]


def _note_outcome(lease: Lease, outcome: str, **_: Any) -> None:
    run = _runs.get(lease)
    if run is not None and run.span.is_recording():
        run.span.set_attribute("outcome", outcome)


def _run_ended(lease: Lease, error: BaseException | None, **_: Any) -> None:
    run = _runs.pop(lease, None) if _runs else None
    if run is None:
        return
    context.detach(run.token)
    if error is not None:
        # Its message may hold secrets.
        run.span.set_attribute("error.type", type(error).__qualname__)
        run.span.set_status(Status(StatusCode.ERROR))
    run.span.end()


def _pass_finished(result: PassResult, trigger: Trigger, **_: Any) -> None:
    ended_at = time.time_ns()
    span = _tracer.start_span(
        "jobreaper.pass",
        start_time=ended_at - round(result.duration_ms * 1_000_000),
        attributes={
            "trigger": trigger,
            "tables": list(result.tables),
            "requeued": result.requeued,
            "failed": result.failed,
            "held": result.held,
        },
    )
    if result.all_errors:
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended_at)


def _known(**attributes: str | int | None) -> dict[str, str | int]:
    return {key: value for key, value in attributes.items() if value is not None}
