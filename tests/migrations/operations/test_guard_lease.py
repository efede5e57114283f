"""`GuardLease`: what goes past `save()` is refused by the table, and no verb is."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import IntegrityError, connection, migrations, models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import OperationWriter
from django.test.utils import isolate_apps

from jobreaper import LeasedJob, NotLeasable, cancel, claim, fail, hold, reap, requeue
from jobreaper.operations import AddLeaseColumns, GuardLease
from jobreaper.tables import adoption
from tests.migrations.operations.conftest import Large
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

TABLES = ["reports", 'vault"."reports', "r" * 60, "the Reports"]


class Guarded:
    """A job table with its guard, and the operation that has made it."""

    def __init__(self, db_table: str) -> None:
        meta = type("Meta", (), {"app_label": "large", "db_table": db_table})
        body = {"Meta": meta, "__module__": __name__, "title": models.TextField(default="")}
        self.model: Any = type("Report", (LeasedJob,), body)
        self.state = ProjectState()
        self.state.add_model(ModelState.from_model(self.model))
        self.operation = GuardLease("Report")
        with connection.schema_editor() as editor:
            editor.create_model(self.model)
        self.apply()

    def apply(self) -> None:
        with connection.schema_editor() as editor:
            self.operation.database_forwards("large", editor, self.state, self.state)

    def undo(self) -> None:
        with connection.schema_editor() as editor:
            self.operation.database_backwards("large", editor, self.state, self.state)

    def drop(self) -> None:
        self.undo()
        with connection.schema_editor() as editor:
            editor.delete_model(self.model)

    def write(self, pk: object, **columns: Any) -> None:
        self.model.objects.filter(pk=pk).update(**columns)


@pytest.fixture(params=TABLES)
def guarded(sql: Sql, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    known = dict(adoption._tables)
    sql("CREATE SCHEMA vault")
    with isolate_apps("tests.migrations"):
        table = Guarded(request.param)
        yield table
        table.drop()
    sql("DROP SCHEMA vault")
    adoption._tables.clear()
    adoption._tables.update(known)


def rows(guarded: Guarded) -> Any:
    return guarded.model.objects.values()


def test_no_verb_is_refused(guarded: Guarded) -> None:
    model = guarded.model
    pk = model.objects.create(title="one", max_attempts=9).pk
    for verb in ("release", "fail", "reap", "requeue", "cancel", "requeue", "fail by hand"):
        if verb in ("cancel", "fail by hand"):
            assert (cancel if verb == "cancel" else fail)(model, [pk], by="ann")
            continue
        if model.objects.get(pk=pk).status == "cancelled":
            assert requeue(model, [pk], by="ann")
        lease = claim(model, pk)
        assert lease is not None
        lease.job.save()
        if verb == "release":
            lease.release()
        elif verb == "fail":
            lease.fail("E7")
            guarded.write(pk, next_earliest_run_at=None)
        elif verb == "reap":
            guarded.write(pk, lease_expires_at="2020-01-01 00:00Z")
            assert reap([model]).requeued_ids
            guarded.write(pk, next_earliest_run_at=None)
        else:
            assert requeue(model, [pk], by="ann")
    assert requeue(model, [pk], by="ann")
    with hold(model, pk):
        pass
    assert model.objects.get(pk=pk).status == "success"


def test_a_lower_epoch_is_refused_and_the_row_is_named(guarded: Guarded) -> None:
    pk = guarded.model.objects.create(title="a secret").pk
    assert claim(guarded.model, pk) is not None
    before = list(rows(guarded))
    with pytest.raises(IntegrityError, match=f"job {pk} of .* is processing at epoch 1") as refused:
        guarded.write(pk, status="queued", lease_epoch=0)
    assert "a secret" not in str(refused.value)
    with pytest.raises(IntegrityError), transaction.atomic():
        guarded.write(pk, lease_epoch=0)
    assert list(rows(guarded)) == before


@pytest.mark.parametrize("end", ["success", "failed", "cancelled"])
@pytest.mark.parametrize("to", ["queued", "processing"])
def test_an_ended_job_does_not_wait_or_run_again(guarded: Guarded, end: str, to: str) -> None:
    pk = guarded.model.objects.create(status=end, lease_epoch=3).pk
    with pytest.raises(IntegrityError, match=f"is {end} at epoch 3, and cannot be made {to}"):
        guarded.write(pk, status=to)
    guarded.write(pk, title="corrected")
    guarded.write(pk, status=to, lease_epoch=4)


def test_what_a_stale_instance_names_is_refused(guarded: Guarded) -> None:
    seen = guarded.model.objects.create()
    with hold(guarded.model, seen.pk):
        pass
    with pytest.raises(IntegrityError):
        seen.save(update_fields=["status", "title"])
    seen.save()


def test_made_twice_it_is_there_once_and_undone_it_is_gone(guarded: Guarded, sql: Sql) -> None:
    count = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%%guard_lease'"
    guarded.apply()
    assert sql(count)[0]["count"] == 1
    guarded.undo()
    guarded.undo()
    assert sql(count)[0]["count"] == 0
    assert sql("SELECT FROM pg_proc WHERE proname LIKE '%%guard_lease'") == []
    pk = guarded.model.objects.create(lease_epoch=5).pk
    guarded.write(pk, lease_epoch=0)


def test_it_is_made_for_a_table_that_becomes_a_job_table(large: Large, sql: Sql) -> None:
    large.operation = AddLeaseColumns("Large", guard=True)
    large.migrate()
    sql("UPDATE large_jobs SET lease_epoch = 2 WHERE id = 100")
    with pytest.raises(Exception, match="job 100 of large_jobs is queued at epoch 2"):
        sql("UPDATE large_jobs SET lease_epoch = 1 WHERE id = 100")
    large.undo()
    assert sql("SELECT FROM pg_trigger WHERE tgname LIKE '%%guard_lease'") == []


def test_a_migration_has_it_as_it_was_written() -> None:
    written, _ = OperationWriter(AddLeaseColumns("Large", guard=True), indentation=0).serialize()
    assert "guard=True" in written
    assert GuardLease("Report").describe() == "Guard the leases of Report"
    assert GuardLease("Report").migration_name_fragment == "report_guard"


def test_a_table_without_leases_has_nothing_to_guard() -> None:
    state = ProjectState()
    migrations.CreateModel("Note", [("id", models.BigAutoField(primary_key=True))]).state_forwards(
        "large", state
    )
    with connection.schema_editor() as editor, pytest.raises(NotLeasable, match="lease_epoch"):
        GuardLease("Note").database_forwards("large", editor, state, state)
