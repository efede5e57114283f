"""``manage.py schedule``: list the schedules, pause and resume one, or make its job now."""

from __future__ import annotations

import argparse
from datetime import datetime
from getpass import getuser
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils.timezone import localtime

from jobreaper.db import connection_for, reading_any_time
from jobreaper.management.options import BAD_USAGE, CheckedCommand, name
from jobreaper.models import Job, Schedule
from jobreaper.schedule import pause_schedule, resume_schedule, run_schedule
from jobreaper.tables import table_of

VERBS: Final = ("pause", "resume", "run")


class Command(CheckedCommand):
    """Parses the arguments, acts, prints."""

    help = "List the schedules; or pause or resume one, or make its job now."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("verb", nargs="?", choices=VERBS, help="without it, list them")
        parser.add_argument("name", nargs="?", type=name, help="the schedule")

    def handle(self, *args: Any, **options: Any) -> None:
        """Act or list."""
        verb, named = options["verb"], options["name"]
        if verb is None:
            self._list()
            return
        if named is None:
            raise CommandError(f"which schedule is to {verb}?", returncode=BAD_USAGE)
        self.stdout.write(f"{named} {self._act(verb, named)}")

    def _act(self, verb: str, named: str) -> str:
        if verb == "run":
            return f"made the job {run_schedule(named).pk}"
        if verb == "pause":
            return "is paused" if pause_schedule(named, by=getuser()) else "was paused already"
        return "is resumed" if resume_schedule(named) else "was not paused"

    def _list(self) -> None:
        alias = table_of(Job).alias
        with reading_any_time(connection_for(alias)):
            found = list(Schedule.objects.using(alias).order_by("name"))
        if not found:
            self.stdout.write("No worker has started with a schedule yet.")
        for schedule in found:
            state = "paused" if schedule.paused_at else schedule.error or "on"
            self.stdout.write(
                f"{schedule.name}: {schedule.definition.get('cron')} "
                f"{schedule.definition.get('timezone')}, next {_time(schedule.next_at)}, "
                f"last {_time(schedule.ticked_at)}, {state}"
            )


def _time(at: datetime | None) -> str:
    return "never" if at is None else f"{localtime(at):%Y-%m-%d %H:%M:%S}"
