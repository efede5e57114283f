"""Keys that a field converts: wherever a job's key comes out, it is the key that Python has."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, models
from django.db.models.functions import Cast
from django.test.utils import isolate_apps

import jobreaper
from jobreaper import claim, claim_next, control, signals, table_checks
from jobreaper.celery.dispatcher import dispatch_job
from jobreaper.models import JobEvent, RefusedRow
from jobreaper.protocol.batch import claim_group, finish_group
from jobreaper.reaper import dead_workers
from jobreaper.tables import table_of
from tests.celery.brokers import Queue, broker_url, celery_app, declare
from tests.keys import KINDS, Prefixed, Ticket
from tests.rows import Sql
from tests.tables.chores import COMMON, model
from tests.tables.conftest import Adopt, Create, Leased

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


@pytest.fixture
def chore(leased: Leased, kind: Any) -> Any:
    """A job table with such a key."""
    return leased(number=kind.field(primary_key=True))


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """The keys that signals name."""
    keys: list[Any] = []

    def by_hand(pk: Any, **_: Any) -> None:
        keys.append(pk)

    def reaped(jobs: Any, **_: Any) -> None:
        keys.extend(job.pk for job in jobs)

    signals.job_changed_by_hand.connect(by_hand)
    signals.job_reaped.connect(reaped)
    yield keys
    signals.job_changed_by_hand.disconnect(by_hand)
    signals.job_reaped.disconnect(reaped)


def test_every_verb_takes_and_returns_it(chore: Any, kind: Any, told: list[Any]) -> None:
    chore.objects.create(pk=kind.key)
    # Text, as a message, a form or a command line has it, will do as well.
    for key in (kind.key, str(kind.key)):
        lease = claim(chore, key)
        assert lease is not None
        assert lease.pk == lease.job.pk == kind.key
        lease.heartbeat()
        lease.job.save()
        lease.release()
        assert control.fail(chore, [key], by="ada") == [kind.key]
        assert control.requeue(chore, [key], by="ada") == [kind.key]
        assert control.cancel(chore, [key], by="ada") == [kind.key]
        assert control.requeue(chore, [key], by="ada") == [kind.key]
    assert told == [kind.key] * 8
    [lease] = claim_next(chore)
    lease.finish()
    assert {event.job_id for event in JobEvent.objects.all()} == {kind.text}
    # As docs/events.md has it.
    key = chore.objects.filter(pk=kind.key).values(key=Cast("pk", models.TextField()))
    assert JobEvent.objects.filter(table="chores", job_id__in=key).count() == 11


def test_groups_end_it(chore: Any, kind: Any) -> None:
    chore.objects.create(pk=kind.key)
    ending = finish_group(claim_group(table_of(chore), 1))
    assert [run.lease.pk for run in ending.ended] == [kind.key]
    assert chore.objects.get(pk=kind.key).status == "success"


def test_passes_name_it(chore: Any, kind: Any, sql: Sql, told: list[Any]) -> None:
    chore.objects.create(pk=kind.key)
    assert claim(chore, kind.key) is not None
    sql("UPDATE chores SET lease_expires_at = now() - interval '1 minute'")
    assert jobreaper.reap([chore], dry_run=True).requeued_ids == {"chores": [kind.key]}
    assert jobreaper.reap([chore]).requeued_ids == {"chores": [kind.key]}
    sql("UPDATE chores SET next_earliest_run_at = NULL")
    assert claim(chore, kind.key, worker="w") is not None
    [job] = dead_workers.give_back(table_of(chore), "w", "killed")
    assert [job.pk] == told[1:] == told[:1] == [kind.key]


def test_what_is_sent_is_what_the_task_gets_and_claims(chore: Any, kind: Any) -> None:
    ran: list[Any] = []
    chore.objects.bulk_create([chore(pk=kind.key)])
    with celery_app(broker_url("redis")) as app:
        task = declare(app, lambda job, lease: ran.append((job.pk, lease.pk)), model=chore)
        queue = Queue(app)
        assert dispatch_job(chore, kind.key)
        [message] = queue.take()
        task(*message.payload[0])
        queue.delete()
    assert ran == [(kind.key, kind.key)]
    assert chore.objects.get(pk=kind.key).status == "success"


def test_messages_that_the_broker_did_not_take_are_sent_again(chore: Any, kind: Any) -> None:
    chore.objects.bulk_create([chore(pk=kind.key)])
    with celery_app("redis://127.0.0.1:1/0") as app:
        declare(app, lambda job, lease: None, model=chore)
        assert not dispatch_job(chore, kind.key)
    assert chore.objects.get(pk=kind.key).dispatched_at is None


def test_one_that_cannot_be_written_is_remembered_and_the_others_are_named(
    chore: Any, kind: Any, sql: Sql, told: list[Any]
) -> None:
    chore.objects.create(pk=kind.key)
    assert claim(chore, kind.key) is not None
    sql("UPDATE chores SET lease_expires_at = now() - interval '1 minute'")
    sql("ALTER TABLE chores ADD org text")
    sql("INSERT INTO chores SELECT (jsonb_populate_record(chores, %s)).* FROM chores", other(kind))
    sql("ALTER TABLE chores ADD CHECK (org IS NULL OR status <> 'queued') NOT VALID")
    result = jobreaper.reap([chore])
    assert result.requeued_ids == {"chores": [kind.key]} == {"chores": told}
    [row] = RefusedRow.objects.all()
    assert str(row.key) == str(json.loads(other(kind))["number"])
    assert result.tables["chores"].refused.rows[0].key == row.key


def other(kind: Any) -> str:
    """What makes another row of a row, one that no constraint lets be reaped."""
    number: Any = kind.text[:-1] + ("0" if kind.text[-1] != "0" else "1")
    is_text = not kind.text.isdigit()
    return json.dumps({"number": number if is_text else int(number), "org": "bad"})


def test_a_refused_claim_is_remembered_by_the_text_of_its_events(
    chore: Any, kind: Any, sql: Sql
) -> None:
    chore.objects.create(pk=kind.key)
    sql("ALTER TABLE chores ADD CHECK (status <> 'processing')")
    for take in (lambda: claim(chore, kind.key), lambda: claim_next(chore)):
        RefusedRow.objects.all().delete()
        with suppress(DatabaseError):
            take()
        assert [row.key for row in RefusedRow.objects.all()] == [kind.text]


def test_the_columns_of_a_composite_key_are_converted_each(
    create: Create, adopt: Adopt, sql: Sql
) -> None:
    create(
        f"CREATE TABLE chores (org int, name text, at timestamptz, {COMMON},"
        " CHECK (name <> 'bad' OR status <> 'queued'), PRIMARY KEY (org, name, at))",
        "TABLE chores",
    )
    table = adopt(
        model(
            pk=models.CompositePrimaryKey("org", "name", "at"),
            org=Ticket(),
            name=Prefixed(),
            at=models.DateTimeField(),
        ),
        ttl=60,
    )
    sql("INSERT INTO chores (org, name, at) VALUES (1, 'a', now()), (2, 'b', now())")
    wanted = {job.pk for job in table.model._default_manager.all()}
    assert {key[:2] for key in wanted} == {("T-1", "100%_a"), ("T-2", "100%_b")}
    sql("INSERT INTO chores (org, name, at) VALUES (3, 'bad', now())")
    dry = jobreaper.reap([table.model], dry_run=True).requeued_ids["chores"]
    assert len(dry) == 3
    assert wanted < {*dry}
    assert {*jobreaper.reap([table.model]).requeued_ids["chores"]} == wanted


class Loud(models.TextField):  # type: ignore[type-arg]
    """A stage that Python has otherwise."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        return value and value.upper()

    def get_prep_value(self, value: Any) -> Any:
        return value and value.lower()


def test_a_stage_is_the_databases_for_settings_and_tasks(leased: Leased) -> None:
    chore = leased(stage=Loud(null=True))
    made = chore.objects.create(stage="CLIP")
    lease = claim(chore, made.pk)
    assert lease is not None
    assert lease.job.stage == "CLIP"
    lease.finish()
    assert JobEvent.objects.get().details["stage"] == "clip"
    assert lease._holding.stage == "clip"


class Reversed(models.expressions.Col):
    def as_sql(self, compiler: Any, connection: Any) -> Any:
        text, params = super().as_sql(compiler, connection)
        return f"reverse({text})", params


class Computed(models.TextField):  # type: ignore[type-arg]
    """A key that only an expression compares."""

    def get_col(self, alias: Any, output_field: Any = None) -> Any:
        return Reversed(alias, self, output_field)


class BothWays(Prefixed):
    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
        return "lower(%s)"

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> Any:
        return "lower(%s)", (value,)


@pytest.mark.parametrize("field", [Computed, BothWays])
def test_a_key_that_is_computed_in_sql_is_an_error(
    field: Any, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with isolate_apps("project.documents"):
        table = adopt(model(id=field(primary_key=True)), ttl=60)
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    said = table_checks.check_adopted_tables(None)
    assert [each.id for each in said if "computed in SQL" in each.msg] == ["jobreaper.E005"]
