"""Fields that are no part of the protocol and are used all the same: no job is stuck for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, models
from django.test import override_settings
from django.utils import timezone

import jobreaper
from jobreaper import control, tables
from jobreaper.metrics.readings import read
from jobreaper.models import JobEvent
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables.conftest import Leased, functions_of

pytestmark = pytest.mark.usefixtures("transactional_db")

Take = Callable[[JobTable, int], list[Any]]


def by_the_next(table: JobTable, n: int) -> list[Any]:
    return [lease.pk for lease in jobreaper.claim_next(table.model, n, worker="w")]


def within_limits(table: JobTable, n: int) -> list[Any]:
    with override_settings(JOBREAPER={"STAGES": {"other": {"max_running": 1}}}):
        return by_the_next(table, n)


def by_dispatch(table: JobTable, n: int) -> list[Any]:
    given = {"id": None, "n": n, "stages": None, "again_sec": 60}
    with connection.cursor() as cursor:
        cursor.execute(table.statement("dispatch"), given)
        return [pk for pk, *_ in cursor.fetchall()]


def in_sql(table: JobTable, n: int) -> list[Any]:
    with functions_of(table), connection.cursor() as cursor:
        cursor.execute("SELECT id FROM chores_claim('w', %s)", [n])
        return [pk for (pk,) in cursor.fetchall()]


@pytest.mark.parametrize("take", [by_the_next, within_limits, by_dispatch, in_sql])
@pytest.mark.parametrize("managed", [True, False])
def test_jobs_without_a_priority_come_last(
    leased: Leased, sql: Sql, monkeypatch: pytest.MonkeyPatch, take: Take, managed: bool
) -> None:
    chore = leased(priority=models.IntegerField(null=True))
    if not managed:
        # Its model need not say what the table is like.
        monkeypatch.setattr(chore._meta, "managed", False)
        monkeypatch.setattr(chore._meta.get_field("priority"), "null", False)
    table = jobreaper.register(chore)
    ago, ahead = (timezone.now() + timedelta(seconds=sec) for sec in (-60, 60))
    rows: list[tuple[int | None, Any]] = [
        (None, None), (-1, None), (None, ago), (5, None), (5, ahead), (None, ahead)
    ]  # fmt: skip
    never, low, late, high, *_ = (
        chore.objects.create(priority=priority, next_earliest_run_at=at).pk for priority, at in rows
    )
    assert take(table, 2) == [high, low]
    assert take(table, 9) == [late, never]


EXTRAS = ("type", "priority", "org_id", "dedupe_key", "created_at")

NULLABLE: dict[str, Any] = {"null": True, "related_name": "+"}

KINDS: dict[str, Callable[..., Any]] = {
    "another column": partial(models.TextField, default="7"),
    "short text": partial(models.CharField, max_length=5, default="7"),
    "integer": partial(models.IntegerField, default=7),
    "bigint": partial(models.BigIntegerField, default=7),
    "numeric": partial(models.DecimalField, max_digits=5, decimal_places=2, default=7),
    "uuid": partial(models.UUIDField, default=uuid.UUID(int=7)),
    "json": partial(models.JSONField, default=dict),
    "time": partial(models.DateTimeField, default=timezone.now),
    "foreign key": partial(models.ForeignKey, "Owner", models.CASCADE, **NULLABLE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_job_is_stuck_for_the_type_or_the_column_of_a_field(
    leased: Leased, sql: Sql, kind: str
) -> None:
    others = kind == "another column"
    chore = leased(
        **{name: KINDS[kind](db_column=f"their_{name}" if others else None) for name in EXTRAS}
    )
    table = tables.table_of(chore)
    done, failed, lost, *_ = (chore.objects.create(stage="clean").pk for _ in range(4))
    leases = {lease.pk: lease for lease in jobreaper.claim_next(chore, 3)}
    assert leases.keys() == {done, failed, lost}
    leases[done].finish()
    leases[failed].fail(OSError(), retry=False)
    sql("UPDATE chores SET lease_expires_at = now() - interval '1 s' WHERE id = %s", lost)
    result = jobreaper.reap([chore])
    assert (result.all_errors, result.requeued_ids["chores"]) == ([], [lost])
    is_text = kind in ("another column", "short text")
    # Another job with the same key is in the queue.
    is_key = is_text or kind == "uuid"
    assert control.requeue(chore, [failed], by="ann") == ([] if is_key else [failed])
    due = 1 if is_key else 2
    assert jobreaper.pause("7", model=chore)
    assert len(by_dispatch(table, 9)) == (0 if is_text else due)
    assert jobreaper.resume("7", model=chore)
    assert len(in_sql(table, 9)) == due
    reading = read(connection, [table])
    assert (reading.errors, reading.standings["chores"].queued) == ([], 1)
    finished = JobEvent.objects.get(type="job:finished")
    assert {"org_id", "type"} & finished.data["details"].keys() == (
        {"org_id", "type"} if is_text else {"org_id"}
    )
