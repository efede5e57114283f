"""The charts of the Reaper page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext as _

from jobreaper.admin.charts import Chart, Series, filled
from jobreaper.admin.words import duration
from jobreaper.overview import Span, passes, series
from jobreaper.overview.series import PassStep, Step


def charts(connection: BaseDatabaseWrapper, span: Span) -> list[Chart]:
    """Return what happened in the last hour or day: throughput, waiting time, and passes."""
    steps = series(connection, span)
    times = [step.at for step in steps]
    length = timedelta(seconds=span.value[1])
    return [
        *_of_events(steps, times, length),
        *_of_passes(passes(connection, span), times, length),
    ]


def _of_events(steps: Sequence[Step], times: list[datetime], length: timedelta) -> list[Chart]:
    note = _("Estimated where many ended.") if any(step.is_rough for step in steps) else ""
    return [
        Chart(
            _("Attempts that ended"),
            times,
            [
                Series(_("finished"), "good", [step.finished for step in steps]),
                Series(_("tried again"), "late", [step.retried for step in steps]),
                Series(_("failed"), "bad", [step.failed for step in steps]),
                Series(_("lost"), "none", [step.requeued for step in steps]),
            ],
            length,
            note=note,
        ),
        Chart(
            _("Waiting time until a worker began"),
            times,
            [
                Series(_("average"), "good", [step.waited_sec or 0 for step in steps]),
                Series(_("95 of 100 below"), "plain", [s.waited_longest_sec or 0 for s in steps]),
            ],
            length,
            shown=lambda seconds: duration(seconds) if seconds else "0",
            note=note,
            is_layered=True,
        ),
    ]


def _of_passes(found: Sequence[PassStep], times: list[datetime], length: timedelta) -> list[Chart]:
    def values(name: str) -> list[float]:
        return filled(times, found, lambda step: float(getattr(step, name)))

    good = filled(times, found, lambda step: max(step.number - step.held - step.errors, 0))
    return [
        Chart(
            _("Jobs that passes took back"),
            times,
            [
                Series(_("requeued"), "late", values("requeued")),
                Series(_("failed"), "bad", values("failed")),
            ],
            length,
        ),
        Chart(
            _("Passes"),
            times,
            [
                Series(_("complete"), "good", good),
                Series(_("held"), "late", values("held")),
                Series(_("with errors"), "bad", values("errors")),
            ],
            length,
        ),
    ]


def charts_by_span(connection: BaseDatabaseWrapper) -> list[tuple[Any, list[Chart]]]:
    """Return the charts of the last hour and of the last day, under their names."""
    return [
        (_("The last hour, by minute"), charts(connection, Span.HOUR)),
        (_("The last day, by hour"), charts(connection, Span.DAY)),
    ]
