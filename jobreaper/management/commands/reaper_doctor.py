"""``manage.py reaper_doctor``: examines the installation, and says what to do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import CommandError

from jobreaper.doctor import Finding, Level, examine
from jobreaper.management.options import ERROR, OwnCommand, add_format_option


class Command(OwnCommand):
    """Parses the arguments, prints the findings."""

    help = (
        "Examine settings, functions, indexes, the reaper's schedule and the server; each finding "
        "says what to do. Exits with 0, with 1 where there is an error, 2 on bad usage."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        add_format_option(parser)
        parser.add_argument(
            "--strict", action="store_true", help="exit with 1 where there is a warning, too"
        )
        parser.add_argument("--quiet", action="store_true", help="leave out what is well")

    def handle(self, *args: Any, **options: Any) -> None:
        """Examine it."""
        found = examine()
        bad = {Level.ERROR, Level.WARNING} if options["strict"] else {Level.ERROR}
        shown = [each for each in found if each.level is not Level.OK or not options["quiet"]]
        if options["format"] == "json":
            self.stdout.write(json.dumps([each.as_dict() for each in shown]))
        else:
            for each in shown:
                self._print(each)
        trouble = [each for each in found if each.level in bad]
        if trouble:
            words = "finding" if len(trouble) == 1 else "findings"
            raise CommandError(f"{len(trouble)} {words} to see to", returncode=ERROR)

    def _print(self, found: Finding) -> None:
        styles = {
            Level.OK: self.style.SUCCESS,
            Level.WARNING: self.style.WARNING,
            Level.ERROR: self.style.ERROR,
        }
        where = f"{found.database}: " if found.database else ""
        level = styles[found.level](f"{found.level.value:<8}")
        self.stdout.write(f"{level} {where}{found.about}: {found.text}")
        if found.remedy and found.level is not Level.OK:
            self.stdout.write(f"           → {found.remedy}")
