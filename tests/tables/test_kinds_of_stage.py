"""A kind of work may be a number or an enum: every verb of a table with leases reads it as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import connection, models
from django.test import override_settings
from django.utils import timezone

import jobreaper
from jobreaper import control
from jobreaper.metrics.readings import read
from jobreaper.models import JobEvent
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables import errands
from tests.tables.conftest import Adopt, Create, functions_of

pytestmark = pytest.mark.usefixtures("transactional_db")


class Kind(NamedTuple):
    """A column that holds the stage: two of its values, and how the model has it."""

    type: str
    field: models.Field[Any, Any]
    one: Any
    other: Any


KINDS = {
    "int": Kind("int USING 8", models.IntegerField(null=True), 8, 9),
    "smallint": Kind("smallint USING 8", models.SmallIntegerField(), 8, 9),
    "enum": Kind("office.kinds USING 'big'", models.CharField(max_length=9), "big", "small"),
    "varchar": Kind("varchar(9)", models.CharField(max_length=9), "big", "small"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def table(create: Create, adopt: Adopt, sql: Sql, kind: Kind) -> Iterator[JobTable]:
    create(errands.DEFINITION, "SCHEMA office")
    sql("CREATE TYPE office.kinds AS ENUM ('big', 'small')")
    sql('ALTER TABLE office."Errands" ALTER kind DROP DEFAULT')
    sql(f'ALTER TABLE office."Errands" ALTER kind TYPE {kind.type}')
    fields: dict[str, Any] = {own.name: own.clone() for own in errands.Errand._meta.local_fields}
    meta = {"app_label": "office", "managed": False, "db_table": errands.Errand._meta.db_table}
    model = type(
        f"Errand{next(numbers)}",
        (models.Model,),
        {
            **fields,
            "kind": kind.field.clone(),
            "Meta": type("Meta", (), meta),
            "__module__": __name__,
        },
    )
    stages = {str(kind.one): {"max_runtime": "1h", "max_running": 1, "lease": 500}}
    with override_settings(JOBREAPER={"STAGES": stages}):
        yield adopt(model, columns=errands.COLUMNS, words=errands.WORDS)


numbers = iter(range(1_000_000))


def jobs(table: JobTable) -> Any:
    return table.model._default_manager


def test_the_policy_of_the_stage_holds_from_the_claim_to_the_end(
    table: JobTable, kind: Kind
) -> None:
    job = jobs(table).create(kind=kind.one)
    lease = jobreaper.claim(table.model, job.pk)
    assert lease is not None
    assert lease.job.kind == kind.one
    job.refresh_from_db()
    assert timedelta(minutes=59) < job.hard_end - timezone.now() <= timedelta(hours=1)
    lease.heartbeat()
    job.refresh_from_db()
    # The lease, and the third by which a heartbeat moves its end further than needed.
    left = job.leased_until - timezone.now()
    assert timedelta(seconds=600) < left <= timedelta(seconds=500 + 500 / 3)
    lease.finish()
    job.refresh_from_db()
    assert (job.state, job.kind) == ("completed", kind.one)


def test_a_claim_keeps_to_its_stages_to_their_limits_and_to_pauses(
    table: JobTable, kind: Kind
) -> None:
    for each in (kind.one, kind.one, kind.other):
        jobs(table).create(kind=each)
    name, other = str(kind.one), str(kind.other)
    assert jobreaper.claim_next(table.model, 9, stages=["none of them"]) == []
    assert control.pause(name, model=table.model)
    assert jobreaper.claim_next(table.model, 9, stages=[name]) == []
    assert control.resume(name, model=table.model)
    [limited] = jobreaper.claim_next(table.model, 9, stages=[name])
    assert limited.job.kind == kind.one
    [free] = jobreaper.claim_next(table.model, 9)
    assert free.job.kind == kind.other
    limited.release()
    free.fail("E1", "again")
    [event] = [e for e in events(table) if e["type"] == "job:retried"]
    assert event["details"]["stage"] == other


def test_a_dispatch_reads_the_stage(table: JobTable, kind: Kind) -> None:
    jobs(table).create(kind=kind.one)
    given = {"id": None, "n": 5, "stages": [str(kind.one)], "again_sec": 60}
    with connection.cursor() as cursor:
        cursor.execute(table.statement("dispatch"), given)
        [(_, stage, *_)] = cursor.fetchall()
    assert stage == str(kind.one)


@pytest.mark.parametrize("by", ["Python", "function"])
def test_a_lost_job_is_reaped_under_the_name_of_its_stage(
    table: JobTable, kind: Kind, sql: Sql, by: str
) -> None:
    job = jobs(table).create(kind=kind.one)
    assert jobreaper.claim(table.model, job.pk)
    assert read(connection, [table]).errors == []
    with functions_of(table):
        [shown] = sql('SELECT stage, state FROM office."Errands_stale_monitor"')
        assert shown == {"stage": str(kind.one), "state": "healthy"}
        jobs(table).update(leased_until=timezone.now() - timedelta(hours=1))
        if by == "function":
            assert len(sql('SELECT * FROM office."Errands_reap"()')) == 1
        else:
            assert jobreaper.reap([table.model]).requeued == 1
        [past] = sql('SELECT stage FROM office."Errands_reclaim_history"')
    assert past["stage"] == str(kind.one)
    [event] = events(table)
    assert event["details"]["stage"] == str(kind.one)
    assert control.cancel(table.model, [job.pk], by="ann")


def test_a_worker_in_another_language_claims_by_stage(
    table: JobTable, kind: Kind, sql: Sql
) -> None:
    job = jobs(table).create(kind=kind.one)
    with functions_of(table):
        call = 'SELECT "Number", fence FROM office."Errands_claim"(\'w\', stages => %s)'
        assert sql(call, ["none of them"]) == []
        [claimed] = sql(call, [str(kind.one)])
        assert claimed["Number"] == job.pk
        for verb in ("heartbeat", "finish"):
            held = f"SELECT office.\"Errands_{verb}\"(%s, 'w', %s) AS held"
            assert sql(held, job.pk, claimed["fence"]) == [{"held": True}]


def events(table: JobTable) -> list[dict[str, Any]]:
    found = JobEvent.objects.filter(table=table.name).order_by("id")
    return [{"type": event.type, "details": event.details} for event in found]
