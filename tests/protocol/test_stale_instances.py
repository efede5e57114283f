"""A program that read a job before others changed it, and writes it back in one of Django's ways,
writes its own columns and leaves the protocol's as they are.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.admin.sites import AdminSite
from django.core import serializers
from django.db import DatabaseError, connection, models, transaction
from django.forms import modelform_factory, modelformset_factory
from django.test import RequestFactory
from django.test.utils import isolate_apps

from jobreaper import LeasedJob, cancel, claim, claim_next
from jobreaper.base import PROTOCOL_FIELDS
from jobreaper.tables import adoption
from project.media.models import Job
from tests.rows import Rows, Sql

NEW = {"by": "the stale program"}


def save(seen: Job) -> None:
    seen.save()


def save_by_force(seen: Job) -> None:
    seen.save(force_update=True, using="default")


def asave(seen: Job) -> None:
    async_to_sync(seen.asave)()


def save_what_was_loaded(seen: Job) -> None:
    some = copy.copy(seen)
    for name in ("claimed_at", "stage"):
        del some.__dict__[name]
    assert some.get_deferred_fields()
    some.save()


def save_in_a_signal_handler(seen: Job) -> None:
    def again(instance: Job, **_: Any) -> None:
        models.signals.post_save.disconnect(again, sender=Job)
        instance.save()

    models.signals.post_save.connect(again, sender=Job)
    seen.save(update_fields=["payload"])


def fixture(seen: Job) -> None:
    """`loaddata` and the like."""
    [made] = serializers.deserialize("json", serializers.serialize("json", [seen]))
    made.save()


def raw_save(seen: Job) -> None:
    seen.save_base(raw=True)


def bulk_update(seen: Job) -> None:
    Job.objects.bulk_update([seen], ["payload"])


def update_or_create(seen: Job) -> None:
    stale = {name: getattr(seen, name) for name in PROTOCOL_FIELDS}
    _, is_new = Job.objects.update_or_create({**stale, "payload": NEW}, pk=seen.pk)
    assert not is_new


def aupdate_or_create(seen: Job) -> None:
    async def update() -> None:
        stale = {"payload": NEW, "status": "queued", "lease_epoch": 0}
        await Job.objects.aupdate_or_create(pk=seen.pk, defaults=stale)

    async_to_sync(update)()


def form(seen: Job) -> None:
    data = {"status": "queued", "payload": '{"by": "the stale program"}', "max_attempts": 3}
    bound: Any = modelform_factory(Job, exclude=["stage"])(data, instance=seen)
    assert bound.is_valid(), bound.errors
    bound.save()


def formset(seen: Job) -> None:
    """What an admin's inlines and `list_editable` are made of."""
    factory = modelformset_factory(Job, fields=["payload"], extra=0)
    data = {
        "form-TOTAL_FORMS": 1,
        "form-INITIAL_FORMS": 1,
        "form-0-id": seen.pk,
        "form-0-payload": '{"by": "the stale program"}',
    }
    bound: Any = factory(data, queryset=Job.objects.filter(pk=seen.pk))
    assert bound.is_valid(), bound.errors
    # As when another process claims the job between the form's SELECT and its UPDATE.
    [one] = bound.forms
    for name in PROTOCOL_FIELDS:
        setattr(one.instance, name, getattr(seen, name))
    bound.save()


def admin_of_ones_own(seen: Job) -> None:
    page = admin.ModelAdmin(Job, AdminSite())
    page.save_model(RequestFactory().post("/"), seen, None, True)


def child_and_proxy(seen: Job) -> None:
    with isolate_apps("project.media"):
        meta = type("Meta", (), {"app_label": "media", "proxy": True})
        proxy: Any = type("LateJob", (Job,), {"Meta": meta, "__module__": __name__})
    fields = {field.attname: getattr(seen, field.attname) for field in Job._meta.concrete_fields}
    late = proxy(**fields)
    late._state.adding = False
    late.save()


WAYS: list[Callable[[Job], None]] = [
    save,
    save_by_force,
    asave,
    save_what_was_loaded,
    save_in_a_signal_handler,
    fixture,
    raw_save,
    bulk_update,
    update_or_create,
    aupdate_or_create,
    form,
    formset,
    admin_of_ones_own,
    child_and_proxy,
]


def is_claimed(pk: int) -> Any:
    lease = claim(Job, pk, worker="another:1:0")
    assert lease is not None
    return lease


def is_finished(pk: int) -> None:
    is_claimed(pk).finish()


def is_failed(pk: int) -> None:
    is_claimed(pk).fail("E7", "no luck", retry=False)


def is_queued_again(pk: int) -> None:
    is_claimed(pk).fail("E7", "no luck")


def is_cancelled(pk: int) -> None:
    cancel(Job, [pk], by="ann")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "happens",
    [is_claimed, is_finished, is_failed, is_queued_again, is_cancelled],
    ids=lambda happens: happens.__name__,
)
def test_the_protocols_columns_stay_as_they_are(
    jobs: Rows, happens: Callable[[int], Any], way: Callable[[Job], None]
) -> None:
    seen = Job.objects.get(pk=jobs.plant(payload="{}"))
    happens(seen.pk)
    before = jobs.row(seen.pk)
    seen.payload = dict(NEW)
    way(seen)
    # A fixture has times in milliseconds.
    before |= {"payload": NEW, "created_at": seen.created_at, "updated_at": seen.updated_at}
    assert as_written(jobs.row(seen.pk)) == as_written(before)


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    own = {name: row[name].replace(microsecond=0) for name in ("created_at", "updated_at")}
    return row | own


def test_a_job_is_never_claimed_twice_at_one_epoch(jobs: Rows) -> None:
    seen = Job.objects.get(pk=jobs.plant())
    first = claim(Job, seen.pk)
    assert first is not None
    seen.save()
    assert claim_next(Job) == []
    first.finish()


def test_what_was_read_under_a_lock_may_be_written_by_name(jobs: Rows) -> None:
    key = jobs.plant()
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=key)
        job.status, job.payload = "cancelled", NEW
        job.save()
    assert jobs.row(key)["status"] == "queued"
    job.save(update_fields=["status"])
    assert jobs.row(key)["status"] == "cancelled"


def test_naming_fields_once_does_not_name_them_in_the_next_save(jobs: Rows) -> None:
    job = Job.objects.get(pk=jobs.plant())
    job.save(update_fields=["status", "payload"])
    job.status = "failed"
    job.save()
    with pytest.raises(ValueError, match="do not exist"):
        job.save(update_fields=["no_field_of_it"])  # type: ignore[misc]
    job.save()
    assert jobs.row(job.pk)["status"] == "queued"


def test_a_new_row_takes_all_that_it_is_given(jobs: Rows) -> None:
    fields = {"status": "failed", "attempt_count": 2, "fail_code": "E7", "lease_epoch": 5}
    made = [
        Job.objects.create(**fields).pk,
        Job.objects.update_or_create({"payload": NEW}, create_defaults=fields, pk=9_000_001)[0].pk,
        Job.objects.update_or_create(fields, pk=9_000_002)[0].pk,
    ]
    [restored] = serializers.deserialize(
        "json", serializers.serialize("json", [Job(pk=9_000_003, **fields)], fields=[*fields])
    )
    restored.save()
    for key in (*made, 9_000_003):
        row = jobs.row(key)
        assert {name: row[name] for name in fields} == fields


def test_forms_do_not_show_what_they_could_not_save() -> None:
    shown = modelform_factory(Job, fields="__all__").base_fields
    assert not shown.keys() & PROTOCOL_FIELDS
    assert shown.keys() >= {"stage", "max_attempts", "expected_duration_ms", "payload"}

    lists = {
        "list_display": ("id", "status", "next_earliest_run_at"),
        "list_editable": ("status", "next_earliest_run_at"),
    }
    refused = type("JobAdmin", (admin.ModelAdmin,), lists)(Job, AdminSite()).check()
    assert [error.id for error in refused] == ["admin.E125"] * 2


def test_a_job_that_was_deleted_since_is_not_queued_again(jobs: Rows, sql: Sql) -> None:
    seen = Job.objects.get(pk=jobs.plant(payload="{}"))
    is_finished(seen.pk)
    sql("DELETE FROM jobs")
    for way in (save, asave, raw_save, save_what_was_loaded):
        with pytest.raises(DatabaseError, match=r"has been deleted|did not affect any rows"):
            way(seen)
    assert jobs.all() == {}
    seen.save(force_insert=True)
    assert [*jobs.all()] == [seen.pk]


# Copies


@pytest.mark.parametrize("came_by", ["a claim", "a query"])
def test_a_copy_of_a_running_job_is_a_new_queued_one(jobs: Rows, came_by: str) -> None:
    lease = claim(Job, jobs.plant(payload='{"a": 1}', stage="clip", max_attempts=7))
    assert lease is not None
    before = jobs.row(lease.pk)
    twin = lease.job if came_by == "a claim" else Job.objects.get(pk=lease.pk)
    twin.pk = None
    twin.save()
    [row] = [row for key, row in jobs.all().items() if key != before["id"]]
    assert (row["status"], row["lease_epoch"], row["attempt_count"]) == ("queued", 0, 0)
    assert (row["locked_by"], row["claimed_at"], row["lease_expires_at"]) == (None, None, None)
    assert (row["payload"], row["stage"], row["max_attempts"]) == ({"a": 1}, "clip", 7)
    assert jobs.row(before["id"]) == before


def test_a_copy_of_a_finished_job_is_like_it(jobs: Rows) -> None:
    job = Job.objects.get(pk=jobs.plant(status="success", attempt_count=2))
    job.pk = None
    job.save()
    rows = [*jobs.all().values()]
    assert [(row["status"], row["attempt_count"]) for row in rows] == [("success", 2)] * 2


# Tables of one's own


@pytest.fixture
def video(sql: Sql) -> Iterator[tuple[Any, Rows]]:
    """A model whose leases are in its parent's table."""
    known = dict(adoption._tables)
    with isolate_apps("project.media"):
        meta = type("Meta", (), {"app_label": "media", "db_table": "works"})
        work: Any = type("Work", (LeasedJob,), {"Meta": meta, "__module__": __name__})
        meta = type("Meta", (), {"app_label": "media", "db_table": "videos"})
        title = models.TextField(default="")
        child: Any = type("Video", (work,), {"Meta": meta, "title": title, "__module__": __name__})
    with connection.schema_editor() as editor:
        editor.create_model(work)
        editor.create_model(child)
    yield child, Rows(sql, "works")
    with connection.schema_editor() as editor:
        editor.delete_model(child)
        editor.delete_model(work)
    adoption._tables.clear()
    adoption._tables.update(known)


def test_a_childs_save_leaves_its_parents_leases_alone(video: tuple[Any, Rows], sql: Sql) -> None:
    model, works = video
    seen = model.objects.create(title="old", stage="clip")
    works.set(seen.pk, status="processing", lease_epoch=1, locked_by="w", attempt_count=1)
    before = works.row(seen.pk)
    seen.title, seen.stage = "new", "asr"
    seen.save()
    assert works.row(seen.pk) == {**before, "stage": "asr"}
    assert [row["title"] for row in sql("TABLE videos")] == ["new"]
