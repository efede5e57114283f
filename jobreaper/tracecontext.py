"""The current trace context, as text that a row can store.

A job table with a text field ``traceparent`` whose default is ``current_traceparent`` stores the
trace in which each job was created.
"""

from __future__ import annotations

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _propagator = None
else:
    _propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the W3C ``traceparent`` of the current span, or ``None`` if there is none."""
    carrier: dict[str, str] = {}
    if _propagator is not None:
        _propagator.inject(carrier)
    return carrier.get("traceparent")
