"""The schedules that this process knows."""

from __future__ import annotations

from collections.abc import Mapping

from jobreaper import conf
from jobreaper.queue.handlers import timetables
from jobreaper.timetable import Timetable


def declared() -> Mapping[str, Timetable]:
    """Return the schedules of handlers and of ``JOBREAPER["SCHEDULE"]`` by name. One in the
    settings replaces that of a handler, and ``None`` there removes it.
    """
    both = {**timetables(), **conf.settings().schedule}
    return {name: timetable for name, timetable in both.items() if timetable is not None}
