"""Carries the trace in a Celery message, from its sender to the run that it starts."""

from __future__ import annotations

from typing import Any, Final

from celery import current_app, current_task
from celery.signals import before_task_publish
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter

from jobreaper import tracing
from jobreaper.celery.task import LeasedTask


def connect() -> None:
    """Subscribe to Celery's signal and tell ``tracing``; called once, at start-up."""
    before_task_publish.connect(_carry, dispatch_uid="jobreaper.tracing")
    if _of_message not in tracing.starters:
        tracing.starters.append(_of_message)


def _carry(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Put the present trace context into the message of a leased task."""
    if isinstance(current_app.tasks.get(sender), LeasedTask):
        propagate.inject(headers)


def _of_message() -> Context | None:
    return propagate.extract(current_task.request, getter=_MESSAGE) if current_task else None


class _MessageGetter(Getter[Any]):
    """Reads the headers of a Celery message, which are attributes of the task's request."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        value = getattr(carrier, key, None)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Any) -> list[str]:
        return list(vars(carrier))


_MESSAGE: Final = _MessageGetter()
