"""``manage.py work``: run due jobs of the ready-made table in this process."""

from __future__ import annotations

import argparse
import gc
import signal
from typing import Any

from django.core.management.base import CommandError

from jobreaper.exceptions import ConfigurationError
from jobreaper.management.options import BAD_USAGE, CheckedCommand, at_least_one, name, seconds
from jobreaper.work import DEFAULT_BATCH, DEFAULT_POLL_SEC, Worker


class Command(CheckedCommand):
    """Parses the arguments, works until told to stop, prints what was done."""

    help = (
        "Run due jobs by their handlers until SIGTERM or Ctrl-C: jobs that run then come to their "
        "end, those that have not started go back to the queue."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--once", action="store_true", help="run what is due, then exit")
        parser.add_argument(
            "--concurrency",
            type=at_least_one,
            default=1,
            metavar="N",
            help="threads that run handlers (default: 1)",
        )
        parser.add_argument(
            "--type",
            type=name,
            action="append",
            dest="types",
            metavar="T",
            help="only this type; may be given several times (default: all that have a handler)",
        )
        parser.add_argument(
            "--stage",
            type=name,
            action="append",
            dest="stages",
            metavar="S",
            help="only this stage; may be given several times (default: all)",
        )
        parser.add_argument(
            "--batch",
            type=at_least_one,
            default=DEFAULT_BATCH,
            metavar="N",
            help=f"jobs a claim, at most (default: {DEFAULT_BATCH}; slow jobs are claimed singly)",
        )
        parser.add_argument(
            "--poll",
            type=seconds,
            default=DEFAULT_POLL_SEC,
            metavar="SEC",
            help=f"how often to look for jobs when idle (default: {DEFAULT_POLL_SEC:g})",
        )
        parser.add_argument(
            "--no-listen",
            action="store_false",
            dest="listen",
            help="do not LISTEN, as through pgbouncer in transaction mode",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Work."""
        try:
            worker = Worker(
                types=options["types"],
                stages=options["stages"],
                concurrency=options["concurrency"],
                batch=options["batch"],
                poll_sec=options["poll"],
                listen=options["listen"],
            )
        except ConfigurationError as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        unknown = set(options["types"] or ()) - set(worker.handlers)
        if unknown or not worker.handlers:
            missing = ", ".join(sorted(unknown)) or "any type"
            raise CommandError(f"there is no handler for {missing}", returncode=BAD_USAGE)

        def listen(handler: Any) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, handler)

        def stop(*_: object) -> None:
            # Told twice, by either, it ends at once; its leases run out.
            listen(signal.SIG_DFL)
            worker.stop()

        listen(stop)
        # What was imported stays. Looking through it for garbage every few thousand jobs would take
        # a tenth of the process's time.
        gc.freeze()
        self.stderr.write(f"running {', '.join(sorted(worker.handlers))}")
        tally = worker.run(once=options["once"])
        self.stdout.write(
            f"{tally.succeeded:,} succeeded, {tally.failed:,} failed, "
            f"{tally.released:,} given back, {tally.lost:,} lost"
        )
        if worker.left_behind:
            raise CommandError(
                f"{worker.left_behind:,} could not be ended or given back; their leases run out"
            )
