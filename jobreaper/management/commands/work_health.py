"""``manage.py work_health``: whether a worker is well, for probes that run a command."""

from __future__ import annotations

import argparse
import socket
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.db.models import ExpressionWrapper, F, fields
from django.db.models.functions import Now

from jobreaper import conf
from jobreaper.management.options import BAD_USAGE, ERROR, CheckedCommand, seconds
from jobreaper.models import Job, Worker
from jobreaper.states import WorkerKind
from jobreaper.tables import table_of

DEFAULT_MAX_AGE_SEC: Final = 60.0


class Command(CheckedCommand):
    """Asks the database when the worker was last seen."""

    help = (
        "Exit with 0 if a manage.py work on this host was seen lately, with 1 if not, for probes "
        "that run a command in the worker's container."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--max-age",
            type=seconds,
            default=DEFAULT_MAX_AGE_SEC,
            metavar="SEC",
            help=f"how long ago it may have been seen (default: {DEFAULT_MAX_AGE_SEC:g})",
        )
        parser.add_argument(
            "--worker", metavar="ID", help="this worker (default: any one on this host)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask."""
        if not conf.settings().presence_grace_sec:
            raise CommandError(
                "PRESENCE_GRACE_SEC is 0, so workers do not say that they are here",
                returncode=BAD_USAGE,
            )
        wanted, host = options["worker"], socket.gethostname()
        rows = Worker.objects.using(table_of(Job).alias).filter(kind=WorkerKind.WORK.value)
        rows = rows.filter(worker=wanted) if wanted else rows.filter(host=host)
        ago = ExpressionWrapper(Now() - F("seen_at"), fields.DurationField())
        seen = rows.filter(gone_at=None).annotate(ago=ago).order_by("ago").first()
        who = wanted or f"a worker on {host}"
        if seen is None:
            raise CommandError(f"{who} is not here", returncode=ERROR)
        said = f"{seen.worker} was seen {seen.ago.total_seconds():.0f} s ago"
        if seen.ago > timedelta(seconds=options["max_age"]):
            raise CommandError(said, returncode=ERROR)
        self.stdout.write(said)
