"""Shapes of job tables, and the whole text of each statement that can be sent for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db import connection, models
from django.test.utils import isolate_apps

from jobreaper import moving
from jobreaper.control import retention
from jobreaper.models import Job as QueueJob
from jobreaper.queue import enqueueing
from jobreaper.reaper import dead_workers
from jobreaper.schema import functions
from jobreaper.states import Dedupe, Status
from jobreaper.tables import refused, statements, table_of
from jobreaper.tables.jobtable import JobTable
from project.documents.models import ExecutorJob
from project.media.models import Job
from tests.tables import errands

# What the functions and views hold of the settings.
SETTINGS = {"STAGES": {"clip": {"lease": "5m", "max_runtime": "2h"}}}
LIMITS = {"STAGES": {"render": {"max_running": 2}}}

Texts = Iterator[tuple[str, str]]

PROTOCOL = [
    "claim",
    "claim_one",
    "retake",
    "heartbeat",
    "finish",
    "finish_many",
    "fail",
    "fail_many",
    "release",
    "release_many",
    "withdraw_many",
    "save_state",
    "read_state",
    "forget_states",
    "reject",
    "traced",
    "worker_lost",
    "change_by_hand",
    "run_now",
    "dispatch",
    "undo_dispatch",
    "unhandled",
]


def leased(table: JobTable) -> Texts:
    """Everything for a table whose jobs workers claim."""
    for name in PROTOCOL:
        yield name, table.statement(name)
    yield "worker_lost_one_by_one", dead_workers.one_by_one_statement(table)
    yield "oldest_due_age", table.oldest_due_age_statement
    yield "running_within", statements.running_within(table, "stage")
    yield "stuck", statements.stuck(table)
    yield "stages_in_line", statements.stages_in_line(table)
    yield from reaped(table)
    prune = retention.job_statements(connection, table, Status.SUCCESS)
    yield "prune_jobs", prune.deleting
    yield "prune_jobs_dry_run", prune.counting


def reaped(table: JobTable) -> Texts:
    """What is for every job table, with leases or without."""
    name = "reap" if table.can_be_leased else "reclaim"
    yield name, table.reap_statement
    yield f"{name}_dry_run", table.reap_dry_run_statement
    one_by_one = refused.one_by_one_statement(table, *refused.pass_one_by_one(table))
    yield f"{name}_one_by_one", one_by_one
    yield "scrape", table.scrape_statement
    yield "plan", statements.plan(table, Status.QUEUED)
    yield "job_facts", table.facts_statement
    yield "count_of_status", statements.count_of_status(table, Status.FAILED)
    yield from installed(table)


def installed(table: JobTable) -> Texts:
    """The functions and views of a table."""
    for made in functions.of_table(table, connection):
        name = made.identifier._obj[-1].removeprefix(f"{table.name_parts[-1]}_")
        yield f"{made.kind.lower()}_{name}", made.source


def queue(table: JobTable) -> Texts:
    """Everything for the ready-made queue."""
    yield from leased(table)
    yield "claim_by_kind", table.statement("claim_by_kind")
    yield "heartbeat_with_progress", table.statement("heartbeat_with_progress")
    for name in ("enqueue", "enqueue_many"):
        for dedupe in (None, *Dedupe):
            text = enqueueing._statement(name, dedupe)
            yield f"{name}_or_{dedupe}" if dedupe else name, text
    yield "carry_over", moving.carry_over_statement()


def limited(table: JobTable) -> Texts:
    """What differs where a stage has a ``max_running``."""
    yield "claim", table.limited_statement("claim")
    yield "claim_by_kind", table.limited_statement("claim_by_kind")
    yield "dispatch", table.limited_statement("dispatch")
    yield from ((name, text) for name, text in installed(table) if name == "function_claim")


def package(_: JobTable) -> Texts:
    """What belongs to no one table."""
    for name in ("totals", "fold_totals"):
        yield name, statements.totals(name)
    for name in ("refused", "refused_by_table", "remember_refused", "forget_refused"):
        yield name, refused.statement(name)
    for target in retention._records():
        prune = target.render()
        yield f"prune_{target.name}", prune.deleting
        yield f"prune_{target.name}_dry_run", prune.counting
    for made in functions.of_package(connection):
        yield f"function_{made.identifier._obj[-1].removeprefix('jobreaper_')}", made.source


def _composite() -> JobTable:
    """Somebody's table without leases whose key has two columns."""
    with isolate_apps():
        attributes: dict[str, Any] = {
            "pk": models.CompositePrimaryKey("at", "n"),
            "at": models.DateTimeField(),
            "n": models.IntegerField(),
            "status": models.TextField(),
            "claimed_at": models.DateTimeField(null=True),
            "Meta": type("Meta", (), {"app_label": "golden", "db_table": "chores"}),
            "__module__": __name__,
        }
        return JobTable(model=type("Chore", (models.Model,), attributes), ttl_sec=60)


# What there is of each shape, and under which settings.
SHAPES: dict[str, tuple[JobTable, Callable[[JobTable], Texts], dict[str, Any]]] = {
    "leased": (JobTable(model=Job), leased, SETTINGS),
    "queue": (JobTable(model=QueueJob), queue, SETTINGS),
    "limited": (JobTable(model=QueueJob), limited, LIMITS),
    "adopted_with_leases": (
        JobTable(
            model=errands.Errand,
            given_columns=errands.COLUMNS,
            words={
                Status.QUEUED: ("waiting",),
                Status.PROCESSING: ("running", "finishing"),
                Status.SUCCESS: ("completed",),
                Status.FAILED: ("failed",),
                Status.CANCELLED: ("canceled",),
            },
        ),
        leased,
        SETTINGS,
    ),
    "adopted": (table_of(ExecutorJob), reaped, {}),
    "composite_key": (_composite(), reaped, {}),
    "package": (JobTable(model=Job), package, SETTINGS),
}
