"""Small charts as SVG, drawn on the server: no script, no style that a strict CSP forbids.

Colors are classes of ``admin.css``, so that they follow the theme. Each chart has its numbers as a
table too, for screen readers and for whoever wants them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime

# In the units of the picture, which grows with the page.
WIDTH: Final = 480
HEIGHT: Final = 90
TOP: Final = 14
FOOT: Final = 14


@dataclass(frozen=True)
class Series:
    """One part of each bar: its name, its tone, and its value in each step."""

    name: Any
    tone: str
    values: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Stacked bars over time. ``shown`` writes a value."""

    title: Any
    times: Sequence[datetime]
    series: Sequence[Series]
    step: timedelta
    shown: Callable[[float], str] = "{:,.0f}".format
    note: Any = ""
    # Not stacked: the later series are drawn before the earlier ones, which are smaller.
    is_layered: bool = False

    @property
    def legend(self) -> list[tuple[str, Any, str]]:
        """The tone and the name of each series, with its sum, or its largest value if layered."""
        return [
            (
                each.tone,
                each.name,
                self.shown(max(each.values, default=0) if self.is_layered else sum(each.values)),
            )
            for each in self.series
        ]

    @property
    def largest(self) -> float:
        """The height of the highest bar."""
        columns = zip(*(each.values for each in self.series), strict=True)
        over = max if self.is_layered else sum
        return max((over(values) for values in columns), default=0)

    def svg(self) -> SafeString:
        """Return the picture."""
        largest = self.largest or 1
        room = HEIGHT - TOP - FOOT
        width = WIDTH / max(len(self.times), 1)
        bars: list[tuple[Any, ...]] = []
        for place in range(len(self.times)):
            so_far = 0.0
            for each in reversed(self.series) if self.is_layered else self.series:
                height = each.values[place] / largest * room
                if height:
                    corner = (place * width, HEIGHT - FOOT - so_far - height)
                    bars.append((each.tone, *_rounded(*corner, max(width - 1, 0.5), height)))
                so_far += 0 if self.is_layered else height
        drawn = format_html_join(
            "", '<rect class="jr-bar-{}" x="{}" y="{}" width="{}" height="{}"></rect>', bars
        )
        return format_html(
            '<svg class="jr-chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}"'
            ' preserveAspectRatio="none"><line class="jr-axis" x1="0" y1="{y}" x2="{w}" y2="{y}">'
            "</line>{drawn}</svg>",
            w=WIDTH,
            h=HEIGHT,
            title=self.title,
            y=HEIGHT - FOOT + 0.5,
            drawn=drawn,
        )

    @property
    def top(self) -> str:
        """The value of the highest bar, as a label."""
        return self.shown(self.largest)

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The numbers, as rows of a table: the steps in which there is anything."""
        return [
            (self.moment(at), [self.shown(each.values[place]) for each in self.series])
            for place, at in enumerate(self.times)
            if any(each.values[place] for each in self.series)
        ]

    def moment(self, at: datetime) -> str:
        """Return the time of a step in the reader's time zone."""
        return f"{localtime(at):%H:%M}"

    @property
    def first(self) -> str:
        """The time at the left end."""
        return self._end(self.times[0]) if self.times else ""

    @property
    def last(self) -> str:
        """The time at the right end."""
        return self._end(self.times[-1] + self.step) if self.times else ""

    def _end(self, at: datetime) -> str:
        """Return a time at an end, with its day if the ends are on two days."""
        begin, end = localtime(self.times[0]), localtime(self.times[-1] + self.step)
        is_one_day = begin.date() == end.date()
        return self.moment(at) if is_one_day else f"{localtime(at):%Y-%m-%d %H:%M}"


def _rounded(*numbers: float) -> list[str]:
    # As text: Django writes numbers in the language's own way.
    return [f"{number:.2f}" for number in numbers]


def filled(
    times: Sequence[datetime], found: Sequence[Any], read: Callable[[Any], float]
) -> list[float]:
    """Return a value for each of ``times``: that of the row of that time, or 0."""
    by_time = {row.at: read(row) for row in found}
    return [by_time.get(at, 0.0) for at in times]
