"""The trace in which a job is created: a span of OpenTelemetry where the process has an SDK, and
otherwise new ids, so that the log lines of a job can be found together without it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


class Creation(NamedTuple):
    """The ids for a job, as hexadecimal text, and its span, if there is one. ``end()`` it when the
    job was pushed; a span that does not end is not sent.
    """

    trace_id: str
    span_id: str
    span: Span | None = None

    def end(self, queue: str, job_id: str) -> None:
        """Say that the job was pushed to ``queue``."""
        if self.span is not None:
            self.span.set_attributes({"jobreaper.queue": queue, "jobreaper.job": job_id})
            self.span.end()


def begin() -> Creation:
    """Return where a job is created: in a span below the current one, if the process has an SDK."""
    if trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        tracer = trace.get_tracer("jobreaper.redisq")
        span = tracer.start_span("jobreaper.redisq.enqueue", kind=trace.SpanKind.PRODUCER)
        context = span.get_span_context()
        if context.is_valid:
            return Creation(f"{context.trace_id:032x}", f"{context.span_id:016x}", span)
    return Creation(secrets.token_hex(_TRACE_BYTES), secrets.token_hex(_SPAN_BYTES))
