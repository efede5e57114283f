"""When a schedule makes a job: cron expressions, their time zones, and the changes of the clock.

Expressions are read by cronsim, which follows Debian's cron: five fields, ``L`` for the last day of
a month, ``5#2`` for the second Friday, and names of months and days. If the change to summer time
skips a time, it stands for the moment of the change. A time that comes twice counts once, unless
its minute or hour begins with a star.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobreaper import values
from jobreaper.states import DEFAULT_QUEUE, CatchUp

# Some time that exists in every zone, to try an expression.
_SOME_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """A job that is made again and again.

    Args:
        name: tells it from other schedules.
        type: the type of its jobs.
        cron: when, as a cron expression of five fields.
        timezone: the time zone of the expression.
        payload, org_id, stage, priority, max_attempts: as for ``enqueue()``.
        catch_up: what to do about times that passed while nobody looked.
        queue: the queue of its jobs.
        overlap: whether a job is made while an earlier one is queued or running.
    """

    name: str
    type: str
    cron: str
    timezone: str = "UTC"
    payload: Any = None
    org_id: str | None = None
    stage: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    catch_up: CatchUp = CatchUp.LAST
    overlap: bool = True
    queue: str = DEFAULT_QUEUE

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after ``moment``, in UTC; ``None`` if there is none."""
        return next(self.times_after(moment), None)

    def times_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after ``moment``, in UTC."""
        for found in CronSim(self.cron, moment.astimezone(ZoneInfo(self.timezone))):
            # At the change to winter time, a local time may stand for one that has passed.
            if found.astimezone(UTC) > moment:
                yield found.astimezone(UTC)

    def last_until(self, moment: datetime) -> datetime | None:
        """Return the last time that is not after ``moment``, in UTC."""
        local = moment.astimezone(ZoneInfo(self.timezone))
        for found in CronSim(self.cron, local.replace(microsecond=1), reverse=True):
            if found.astimezone(UTC) <= moment:
                return found.astimezone(UTC)
        return None

    def definition(self) -> dict[str, Any]:
        """Return what it is, without its name, for JSON."""
        return {own.name: getattr(self, own.name) for own in fields(self) if own.name != "name"}


def timetable(name: str, options: Mapping[str, Any], *, timezone: str) -> Timetable:
    """Return a schedule from its options as settings or a decorator give them. ``timezone`` is the
    default.

    Raises:
        ValueError: the message names the option that is bad, and why.
    """
    known = {own.name: own for own in fields(Timetable) if own.name != "name"}
    if unknown := options.keys() - known.keys():
        raise ValueError(f"it has the unknown key {min(unknown)!r}; keys are {', '.join(known)}")
    if "cron" not in options:
        raise ValueError("it has no cron")
    parsed: dict[str, Any] = {}
    where = "name"
    try:
        values.short_name(name)
        for where, raw in {"type": name, "timezone": timezone, **options}.items():
            parsed[where] = _PARSERS[where](raw)
    except ValueError as error:
        raise ValueError(f"its {where} is bad: {error}") from None
    return Timetable(name=name, **parsed)


def _cron(value: object) -> str:
    text = values.text(value)
    if len(text.split()) != 5:
        raise ValueError("it must have five fields, such as '0 6 * * 1-5'")
    try:
        first = next(CronSim(text, _SOME_TIME), None)
    except CronSimError as error:
        raise ValueError(f"it cannot be read ({error}); '0 6 * * 1-5' can") from None
    if first is None:
        raise ValueError("it names no time")
    return " ".join(text.split())


def _timezone(value: object) -> str:
    text = values.text(value)
    try:
        ZoneInfo(text)
    # The name may also be a folder, or absolute.
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {text!r}; 'Europe/Berlin' is one") from None
    return text


def _payload(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it must be JSON: {error}") from None
    return value


def _catch_up(value: object) -> CatchUp:
    try:
        return CatchUp(str(value))
    except ValueError:
        raise ValueError(f"it must be one of {', '.join(CatchUp)}") from None


_PARSERS: Final[Mapping[str, Any]] = {
    "type": values.short_name,
    "cron": _cron,
    "timezone": _timezone,
    "payload": values.optional(_payload),
    "org_id": values.optional(values.short_name),
    "stage": values.optional(values.short_name),
    "priority": values.job_priority,
    "max_attempts": values.optional(values.count),
    "queue": values.short_name,
    "catch_up": _catch_up,
    "overlap": values.switch,
}
