"""The trace context of the moment, as text that a row can keep.

A job table with a text field ``traceparent`` whose default is ``current_traceparent`` remembers the
trace in which its jobs were made.
"""

from __future__ import annotations

try:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _propagator = None
else:
    _propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """Return the W3C ``traceparent`` of the current span, ``None`` where there is none."""
    carrier: dict[str, str] = {}
    if _propagator is not None:
        _propagator.inject(carrier)
    return carrier.get("traceparent")
