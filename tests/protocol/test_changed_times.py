"""A row says when it was changed last: each change of status moves its `auto_now` fields, in the
database's clock, and a heartbeat does not.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, models
from django.db.models.functions import Upper
from django.test.utils import isolate_apps

from jobreaper import LeasedJob, cancel, claim, fail, reap, register, requeue
from jobreaper.tables import adoption
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

Change = Callable[[Any, Any], object]


@pytest.fixture
def report(sql: Sql) -> Iterator[Any]:
    """A model with each kind of field that is set when a row changes, under odd names."""
    known = dict(adoption._tables)
    fields: dict[str, Any] = {
        "touched": models.DateTimeField(auto_now=True, db_column="Last touched"),
        "day": models.DateField(auto_now=True),
        "hour": models.TimeField(auto_now=True),
        "made": models.DateTimeField(auto_now_add=True),
        "shouted": models.GeneratedField(
            expression=Upper("status"),
            output_field=models.TextField(),
            db_persist=True,
        ),
    }
    with isolate_apps("project.media"):
        meta = type("Meta", (), {"app_label": "media", "db_table": "reports"})
        body = {"Meta": meta, "__module__": __name__, **fields}
        model: Any = type("Report", (LeasedJob,), body)
        with connection.schema_editor() as editor:
            editor.create_model(model)
        yield model
        with connection.schema_editor() as editor:
            editor.delete_model(model)
    adoption._tables.clear()
    adoption._tables.update(known)


def claimed(model: Any, pk: Any) -> Any:
    model.objects.filter(pk=pk).update(status="queued", next_earliest_run_at=None)
    lease = claim(model, pk)
    assert lease is not None
    grow_old(model)
    return lease


def grow_old(model: Any) -> None:
    model.objects.update(touched=LONG_AGO, day="2020-01-01", hour="00:00:00", made=LONG_AGO)


def reaped(model: Any, pk: Any) -> None:
    claimed(model, pk)
    model.objects.update(lease_expires_at=LONG_AGO)
    assert reap([model]).requeued_ids


CHANGES: dict[str, Change] = {
    "claim": lambda model, pk: claim(model, pk),
    "finish": lambda model, pk: claimed(model, pk).finish(),
    "release": lambda model, pk: claimed(model, pk).release(),
    "fail and retry": lambda model, pk: claimed(model, pk).fail("E7"),
    "fail": lambda model, pk: claimed(model, pk).fail("E7", retry=False),
    "reap": reaped,
    "cancel": lambda model, pk: cancel(model, [pk], by="ann"),
    "fail by hand": lambda model, pk: fail(model, [pk], by="ann"),
    "requeue": lambda model, pk: (claimed(model, pk), requeue(model, [pk], by="ann")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_status_moves_them(report: Any, change: Change) -> None:
    pk = report.objects.create().pk
    grow_old(report)
    change(report, pk)
    job = report.objects.get()
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        [now] = cursor.fetchone()
    assert 0 <= (now - job.touched).total_seconds() < 60
    assert job.day == job.touched.date()
    assert job.hour == job.touched.time()
    assert job.made == LONG_AGO
    assert job.shouted == job.status.upper()


def test_a_claimed_job_has_what_was_written(report: Any) -> None:
    lease = claim(report, report.objects.create().pk)
    assert lease is not None
    assert lease.job.touched == lease.job.claimed_at


def test_a_heartbeat_leaves_them_alone(report: Any) -> None:
    lease = claimed(report, report.objects.create().pk)
    lease.heartbeat()
    job = report.objects.get()
    assert job.last_heartbeat_at > LONG_AGO
    assert (job.touched, str(job.day)) == (LONG_AGO, "2020-01-01")


def test_a_reclaim_of_somebody_elses_table_moves_them_too(sql: Sql) -> None:
    known = dict(adoption._tables)
    with isolate_apps("project.media"):
        body: dict[str, Any] = {
            "status": models.TextField(),
            "claimed_at": models.DateTimeField(null=True),
            "modified": models.DateTimeField(auto_now=True),
            "seen": models.DateTimeField(null=True),
        }
        meta = type("Meta", (), {"app_label": "media", "db_table": "chores"})
        chore: Any = type("Chore", (models.Model,), {"Meta": meta, "__module__": __name__, **body})
        register(chore, columns={"updated_at": "seen"}, ttl=60, max_attempts=1, reclaim_only=True)
    try:
        with connection.schema_editor() as editor:
            editor.create_model(chore)
        job = chore.objects.create(status="processing", claimed_at=LONG_AGO)
        chore.objects.update(modified=LONG_AGO)
        assert reap([chore]).all_errors == []
        job.refresh_from_db()
        assert job.status == "failed"
        assert job.modified == job.seen
        assert job.seen > LONG_AGO
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(chore)
        adoption._tables.clear()
        adoption._tables.update(known)
