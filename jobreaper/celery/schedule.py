"""When the package's own tasks run."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jobreaper import conf
from jobreaper.conf import PRUNE_INTERVAL_SEC

REAP: Final = "jobreaper.reap"
DISPATCH: Final = "jobreaper.dispatch"
PRUNE: Final = "jobreaper.prune"


class Entry(NamedTuple):
    """One scheduled task: its name in the schedule, the task's name, seconds between runs."""

    name: str
    task: str
    every_sec: float


# The settings from which the last schedule was made.
_handed_out: list[Entry] = []


def entries(settings: conf.Settings | None = None) -> list[Entry]:
    """Return all scheduled tasks of the package, with their intervals from ``settings``."""
    settings = settings or conf.settings()
    return [
        Entry("jobreaper: reap", REAP, settings.reaper_interval_sec),
        Entry("jobreaper: dispatch", DISPATCH, settings.dispatch_interval_sec),
        Entry("jobreaper: prune", PRUNE, PRUNE_INTERVAL_SEC),
    ]


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Return the entries for ``CELERY_BEAT_SCHEDULE``; merge them with your own.

    A message expires when the next one is sent, so passes do not pile up while no worker is
    listening. An invalid setting counts as not given here; the system checks report it.
    """
    _handed_out[:] = entries(conf.present()[0])
    return {
        entry.name: {
            "task": entry.task,
            "schedule": entry.every_sec,
            "options": {"expires": entry.every_sec},
        }
        for entry in _handed_out
    }


def made_too_early() -> bool:
    """Return whether the schedule was made from other settings than the current ones, for example
    because ``beat_schedule()`` is called above ``JOBREAPER``.
    """
    return bool(_handed_out) and _handed_out != entries()
