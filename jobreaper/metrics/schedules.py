"""The metrics of schedules. Their names are labels, but no more than ``MOST_SCHEDULES`` of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from jobreaper.schedule.standing import Standing

# So many schedules have series of their own, by name; the others share one.
MOST_SCHEDULES: Final = 100
OTHER: Final = "other"


class Schedules:
    """The part of a scrape that tells of schedules."""

    def __init__(self) -> None:
        self.last = GaugeMetricFamily(
            "jobreaper_schedule_last_timestamp_seconds",
            "The last time of a schedule for which a job was made.",
            labels=["schedule"],
        )
        self.next = GaugeMetricFamily(
            "jobreaper_schedule_next_timestamp_seconds",
            "The next time of a schedule.",
            labels=["schedule"],
        )
        self.overdue = GaugeMetricFamily(
            "jobreaper_schedule_overdue_seconds",
            "For how long the next time of a schedule has passed without a job.",
            labels=["schedule"],
        )
        self.paused = GaugeMetricFamily(
            "jobreaper_schedule_paused", "Whether a schedule is paused.", labels=["schedule"]
        )
        self.failing = GaugeMetricFamily(
            "jobreaper_schedule_failing",
            "Whether the last job of a schedule could not be made.",
            labels=["schedule"],
        )

    def __iter__(self) -> Iterator[Metric]:
        return iter(vars(self).values())

    def fill(self, schedules: Sequence[Standing]) -> None:
        """Fill in the schedules. Those that share a series show the worst of them."""
        series = defaultdict(list)
        for number, schedule in enumerate(schedules):
            series[schedule.name if number < MOST_SCHEDULES else OTHER].append(schedule)
        for name, shown in series.items():
            for family, values in (
                (self.last, [one.last for one in shown if one.last is not None]),
                (self.next, [one.next for one in shown if one.next is not None]),
            ):
                if values:
                    family.add_metric([name], min(values))
            for family, worst in (
                (self.overdue, max(one.overdue_sec for one in shown)),
                (self.paused, any(one.is_paused for one in shown)),
                (self.failing, any(one.is_failing for one in shown)),
            ):
                family.add_metric([name], worst)
