"""OpenTelemetry spans: one for each pass, one for each leased run.

A run belongs to the trace in which its job was created, and links to the previous attempt, which
may have died: see ``docs/tracing.md``. Only a sampled run costs a statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.db import transaction
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobreaper import signals
from jobreaper.db import fetch
from jobreaper.protocol.holding import Holding, holding_of
from jobreaper.protocol.lease import Lease
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
    # The context to return to. No token, since a coroutine may end its run in another thread.
    before: Context


_runs: Final[WeakKeyDictionary[Lease, _Run]] = WeakKeyDictionary()

# Each returns the context of what has started the run of this thread, such as a message.
starters: Final[list[Callable[[], Context | None]]] = []


def connect() -> None:
    """Subscribe to core code's signals; called once, at start-up."""
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


def _run_started(lease: Lease, **_: Any) -> None:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # No SDK. Quick jobs would feel what follows.
    held = holding_of(lease)
    around = trace.get_current_span().get_span_context()
    span = _tracer.start_span(
        "jobreaper.run",
        context=_parent(lease, around),
        kind=SpanKind.CONSUMER,
        attributes=_known(
            table=held.table.name,
            stage=held.stage,
            job=str(held.pk),
            attempt=held.attempt,
            epoch=held.epoch,
            worker=held.worker,
        ),
    )
    _runs[lease] = _Run(span, context.get_current())
    context.attach(trace.set_span_in_context(span))
    if not span.is_recording():
        return
    if around.is_valid and around.trace_id != span.get_span_context().trace_id:
        span.add_link(around)
    _link_to_attempt_before(held, span)


def _parent(lease: Lease, around: SpanContext) -> Context | None:
    """Return the context of a run: the one in which its job was created, if the row stores it, else
    the current one, else that of what started it.
    """
    traceparent = getattr(lease.job, "traceparent", None)
    if traceparent:
        return _w3c.extract({"traceparent": traceparent})
    if around.is_valid:
        return None
    return next((found for look in starters if (found := look()) is not None), None)


def _link_to_attempt_before(held: Holding, span: Span) -> None:
    connection = held.table.connection(held.alias)
    # In a transaction of the caller, a failure must not undo the job's own writes.
    nested = transaction.atomic(using=held.alias) if connection.in_atomic_block else nullcontext()
    with nested:
        rows = fetch(
            connection,
            held.table.statement("traced"),
            {
                "id": held.key,
                "worker": held.worker,
                "stage": held.stage,
                "attempt": held.attempt,
                "epoch": held.epoch,
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
    context.attach(run.before)
    if error is not None:
        # Its message may contain secrets.
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
