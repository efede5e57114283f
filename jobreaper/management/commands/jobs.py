"""``manage.py jobs``: list, show and change jobs from a terminal."""

from __future__ import annotations

import argparse
import getpass
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import models
from django.db.models.functions import Now

from jobreaper.control import by_hand
from jobreaper.explaining import explain
from jobreaper.explaining.facts import JobFacts, facts_of
from jobreaper.explaining.reported import in_words
from jobreaper.explaining.words import shortened, timestamp
from jobreaper.management.commands.explain import job_with_key
from jobreaper.management.options import (
    BAD_USAGE,
    ERROR,
    OwnCommand,
    add_format_option,
    add_table_option,
    at_least_one,
    table_named,
)
from jobreaper.states import Status
from jobreaper.tables import JobTable

DEFAULT_SHOWN: Final = 50
# Of one statement, so that it holds its locks for a moment only.
BATCH: Final = 1000

_CHANGES: Final[dict[str, tuple[Callable[..., list[Any]], str]]] = {
    "requeue": (by_hand.requeue, "put processing, failed and cancelled jobs back in the queue"),
    "run-now": (by_hand.run_now, "make queued jobs due that are due later"),
    "fail": (by_hand.fail, "fail queued and processing jobs for good"),
    "cancel": (by_hand.cancel, "cancel queued and processing jobs"),
}
# The statuses in which each may find its jobs, where a filter chooses them.
_AMONG: Final = {
    "requeue": (Status.FAILED, Status.CANCELLED, Status.PROCESSING),
    "run-now": (Status.QUEUED,),
    "fail": (Status.QUEUED, Status.PROCESSING),
    "cancel": (Status.QUEUED, Status.PROCESSING),
}
_COLUMNS: Final = ("key", "status", "stage", "locked_by", "attempts", "not before", "error")


class Command(OwnCommand):
    """Parses the arguments, lists or changes the jobs."""

    help = (
        "List, show and change jobs. Exits with 0, with 1 where something could not be done, 2 on "
        "bad usage."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare a subcommand for each thing to do."""
        subparsers = parser.add_subparsers(dest="do", required=True, metavar="DO")
        listing = subparsers.add_parser("list", help="list jobs, the newest first")
        self._add_filters(listing)
        listing.add_argument(
            "--limit",
            type=at_least_one,
            default=DEFAULT_SHOWN,
            metavar="N",
            help=f"at most this many (default: {DEFAULT_SHOWN})",
        )
        showing = subparsers.add_parser("show", help="show one job and explain it")
        showing.add_argument("keys", nargs=1, metavar="JOB")
        for each in (listing, showing):
            add_table_option(each)
            add_format_option(each)
        for name, (_, effect) in _CHANGES.items():
            changing = subparsers.add_parser(name, help=effect)
            changing.add_argument("keys", nargs="*", metavar="JOB", help="keys of jobs")
            self._add_filters(changing)
            changing.add_argument(
                "--all", action="store_true", help="every job that the filters choose"
            )
            changing.add_argument("--reason", help="why; kept in each job's event")
            changing.add_argument("--by", help="who (default: the account that runs this)")
            add_table_option(changing)
            add_format_option(changing)

    def _add_filters(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--status", choices=[status.value for status in Status])
        parser.add_argument("--stage", metavar="S")
        parser.add_argument("--type", metavar="T", help="of a table with types")
        parser.add_argument("--worker", metavar="W", help="running jobs of this worker")
        parser.add_argument("--error", metavar="CODE", help="jobs with this fail_code")
        parser.add_argument(
            "--stuck", action="store_true", help="running jobs without a valid lease"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        table = table_named(options["table"])
        if options["do"] == "list":
            self._list(table, options)
        elif options["do"] == "show":
            self._show(table, options)
        else:
            self._change(table, options)

    def _list(self, table: JobTable, options: dict[str, Any]) -> None:
        keys = list(chosen(table, options).values_list("pk", flat=True)[: options["limit"]])
        by_key = {facts.pk: facts for facts in facts_of(table, keys)}
        found = [by_key[key] for key in keys if key in by_key]
        if options["format"] == "json":
            self.stdout.write(json.dumps([_as_dict(facts) for facts in found], default=str))
            return
        rows = [_COLUMNS, *(_line(facts) for facts in found)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            self.stdout.write("  ".join(cells).rstrip())

    def _show(self, table: JobTable, options: dict[str, Any]) -> None:
        job = job_with_key(table, options["keys"][0])
        [facts] = facts_of(table, [job.pk])
        found = explain(job)
        if options["format"] == "json":
            said = {**_as_dict(facts), "explanation": found.as_dict()}
            self.stdout.write(json.dumps(said, default=str))
            return
        for name, value in {**_as_dict(facts), "progress": in_words(facts.progress)}.items():
            if value not in (None, ""):
                self.stdout.write(f"{name + ':':<22} {value}")
        self.stdout.write(str(found))

    def _change(self, table: JobTable, options: dict[str, Any]) -> None:
        change, _ = _CHANGES[options["do"]]
        keys = self._keys(table, options)
        by = options["by"] or getpass.getuser()
        done: list[Any] = []
        for start in range(0, len(keys), BATCH):
            some = keys[start : start + BATCH]
            done += change(table.model, some, by=by, reason=options["reason"])
        left = [key for key in keys if key not in set(done)] if options["keys"] else []
        if options["format"] == "json":
            said = {"changed": [str(key) for key in done], "left": [str(key) for key in left]}
            self.stdout.write(json.dumps(said))
        else:
            words = "job" if len(done) == 1 else "jobs"
            self.stdout.write(f"{options['do']}: {len(done):,} {words} of {table.name}")
        if left:
            names = ", ".join(str(key) for key in left[:10])
            raise CommandError(
                f"left as they are, since their status does not allow it or they are gone: {names}",
                returncode=ERROR,
            )

    def _keys(self, table: JobTable, options: dict[str, Any]) -> Sequence[Any]:
        if options["keys"] and options["all"]:
            raise CommandError("name jobs or use --all, not both", returncode=BAD_USAGE)
        if options["keys"]:
            try:
                keys = [table.pk.to_python(key) for key in options["keys"]]
                for key in keys:
                    table.prepare_pk(key)
            except (ValueError, TypeError, ValidationError) as error:
                said = f"not all are keys of {table.name}: {', '.join(options['keys'])}"
                raise CommandError(said, returncode=BAD_USAGE) from error
            return keys
        if not options["all"]:
            raise CommandError("name the jobs, or use --all with filters", returncode=BAD_USAGE)
        found = chosen(table, options)
        if options["status"] is None:
            words = [word for status in _AMONG[options["do"]] for word in table.words[status]]
            found = found.filter(**{f"{_field(table, 'status')}__in": words})
        return list(found.values_list("pk", flat=True))


def chosen(table: JobTable, options: dict[str, Any]) -> models.QuerySet[Any]:
    """Return the jobs that the filters choose, the newest first.

    Raises:
        CommandError: the table has no column for one of them.
    """
    found = table.model._base_manager.using(table.alias).order_by("-pk")
    if options["status"] is not None:
        words = table.words.get(Status(options["status"]), ())
        found = found.filter(**{f"{_field(table, 'status')}__in": words})
    for option, part in (("stage", "stage"), ("error", "fail_code"), ("worker", "locked_by")):
        if options[option] is not None:
            found = found.filter(**{_field(table, part): options[option]})
    if options["type"] is not None:
        if "type" not in table.extras:
            raise CommandError(f"{table.name} has no types", returncode=BAD_USAGE)
        found = found.filter(**{table.extras["type"].name: options["type"]})
    if options["worker"] is not None or options["stuck"]:
        words = table.words[Status.PROCESSING]
        found = found.filter(**{f"{_field(table, 'status')}__in": words})
    if options["stuck"]:
        expires = _field(table, "lease_expires_at")
        now = Now()
        found = found.filter(models.Q(**{f"{expires}__lt": now}) | models.Q(**{expires: None}))
    return found


def _field(table: JobTable, part: str) -> str:
    """Return the model's field for a part of the protocol."""
    column = table.columns.get(part)
    for own in table.model._meta.concrete_fields:
        if column is not None and own.column == column:
            return own.name
    raise CommandError(f"{table.name} has no column for {part}", returncode=BAD_USAGE)


def _as_dict(facts: JobFacts) -> dict[str, Any]:
    shown = facts._asdict()
    for internal in ("pk", "locked", "seen_at"):
        del shown[internal]
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in shown.items()
    }


def _line(facts: JobFacts) -> tuple[str, ...]:
    due = facts.next_earliest_run_at
    waits = facts.status == Status.QUEUED and due is not None and due > facts.seen_at
    said = ": ".join(text for text in (facts.fail_code, facts.fail_reason) if text)
    return (
        facts.key,
        facts.status,
        facts.stage or "-",
        facts.locked_by or "-",
        f"{facts.attempt_count or 0}/{facts.max_attempts}",
        timestamp(due) if waits and due is not None else "-",
        shortened(" ".join(said.split()))[:60] or "-",
    )
