"""Values that PostgreSQL stores and Python cannot read: each costs its own cell and no more."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, models
from django.test import Client

from jobreaper.admin import LeasedJobAdmin
from jobreaper.admin.readable import MOST_NESTED, is_too_deep
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent, ReaperPass
from project.media.models import Job
from tests.admin.conftest import execute, make_job
from tests.admin.own import own_jobs
from tests.admin.pages import html, list_of, listed, page_of, text

pytestmark = pytest.mark.django_db

UNREAD_JSON = {
    "endless": '{"n": 1e5000}',
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "too deep to be written again": "[" * 900 + "]" * 900,
    "tiny": '{"n": 1e-16000, "m": 1e9000}',
}
ACTIONS = [("requeue_jobs", "queued"), ("fail_jobs", "failed"), ("cancel_jobs", "cancelled")]


@pytest.fixture(params=UNREAD_JSON.values(), ids=list(UNREAD_JSON))
def unread(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def put(row: models.Model, column: str, value: str) -> None:
    execute(f"UPDATE {row._meta.db_table} SET {column} = %s WHERE id = %s", value, row.pk)


def as_text(row: models.Model, column: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}::text FROM {row._meta.db_table} WHERE id = %s", [row.pk])
        return cursor.fetchone()[0]


@pytest.mark.parametrize("model", [Job, OwnJob])
def test_the_list_and_the_pages_of_a_job_open(superuser: Client, model: Any, unread: str) -> None:
    job, other = (model.objects.create(stage="clip") for _ in range(2))
    put(job, "payload", unread)
    assert {*listed(superuser, list_of(model))} == {job.pk, other.pk}
    for page in ("change", "history", "delete"):
        assert superuser.get(page_of(job, page)).status_code == 200
    assert html(superuser, page_of(other))


@pytest.mark.parametrize(("action", "status"), ACTIONS)
def test_the_verbs_change_it_and_answer(
    superuser: Client, action: str, status: str, unread: str
) -> None:
    job = make_job(status="processing")
    put(job, "payload", unread)
    chosen = {"action": action, "_selected_action": [job.pk]}
    assert superuser.post(list_of(Job), chosen).status_code == 200
    answer = superuser.post(list_of(Job), {**chosen, "confirmed": "yes"}, follow=True)
    assert answer.status_code == 200
    assert Job.objects.values_list("status", flat=True).get() == status
    assert LogEntry.objects.get().object_id == str(job.pk)
    assert superuser.get(page_of(job, "history")).status_code == 200


def test_it_is_deleted_by_page_and_by_action(superuser: Client, unread: str) -> None:
    one, other = make_job(), make_job()
    for job in (one, other):
        put(job, "payload", unread)
    superuser.post(page_of(one, "delete"), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    superuser.post(list_of(Job), chosen)
    assert not Job.objects.values_list("pk").exists()


def test_no_form_writes_it_over(superuser: Client, unread: str) -> None:
    job = make_job()
    put(job, "payload", unread)
    before = as_text(job, "payload")
    page = html(superuser, page_of(job))
    assert 'name="payload"' not in page
    edited = {"stage": "asr", "max_attempts": "3", "payload": '{"forged": 1}'}
    assert superuser.post(page_of(job), edited).status_code == 302
    assert as_text(job, "payload") == before
    assert as_text(job, "stage") == "asr"


def test_it_is_shown_as_postgresql_writes_it(superuser: Client) -> None:
    job = make_job()
    put(job, "payload", '{"n": 1e5000}')
    assert "1" + "0" * 5000 in html(superuser, page_of(job))


def test_events_and_passes_open(superuser: Client, unread: str) -> None:
    job = make_job()
    event = JobEvent.objects.create(job_id=str(job.pk), data={"table": "jobs"})
    JobEvent.objects.create(job_id=str(job.pk), data={"table": "jobs", "type": "other"})
    run = ReaperPass.objects.create(reaper="r", counts={})
    put(event, "data", unread)
    put(run, "counts", unread)
    assert len(listed(superuser, list_of(JobEvent))) == 2
    assert len(listed(superuser, list_of(ReaperPass))) == 1
    for row in (event, run):
        assert html(superuser, page_of(row))
    assert "other" in html(superuser, page_of(job))


@pytest.mark.parametrize(
    "details",
    [
        {"duration_ms": 10**400, "overdue_ms": -(10**4000)},
        {"attempt": json.loads("[" * 90 + "]" * 90)},
        {"next_earliest_run_at": "0001-01-01T00:00:00Z", "fail_reason": "x" * 100_000},
        {"next_earliest_run_at": "9999-12-31T23:59:59Z"},
        {"duration_ms": 1e308, "attempt": "\ufffe"},
    ],
)
@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Lima"])
def test_whatever_stands_in_an_event_that_can_be_read_is_shown(
    superuser: Client, details: Any, zone: str, settings: Any
) -> None:
    settings.TIME_ZONE = zone
    job = make_job()
    for kind in ("reaper:requeued", "job:finished"):
        data = {"type": kind, "table": "jobs", "details": details}
        JobEvent.objects.create(job_id=str(job.pk), data=data)
    for page in (page_of(job), list_of(JobEvent), page_of(JobEvent.objects.latest("pk"))):
        assert html(superuser, page)


class Encrypted(models.TextField):  # type: ignore[type-arg]
    """A field whose key is lost."""

    def from_db_value(self, value: Any, *_: object) -> Any:
        raise ValueError("no key")


OWN_FIELDS: dict[str, tuple[Any, str]] = {
    "secret": (Encrypted(default="", blank=True), "cipher"),
    "span": (models.DurationField(null=True, blank=True), "99999999 years"),
    "hour": (models.TimeField(null=True, blank=True), "24:00:00"),
    "day": (models.DateField(null=True, blank=True), "infinity"),
    "price": (models.DecimalField(null=True, blank=True, max_digits=9, decimal_places=2), "NaN"),
    "ratio": (models.FloatField(null=True, blank=True), "-Infinity"),
}


class EveryField(LeasedJobAdmin):
    """Shows them in the list."""

    list_display = (*LeasedJobAdmin.list_display, *OWN_FIELDS)


@pytest.fixture
def errands(db: None) -> Iterator[Any]:
    fields = {name: field for name, (field, _) in OWN_FIELDS.items()}
    with own_jobs(made_by=EveryField, **{n: f.clone() for n, f in fields.items()}) as model:
        yield model


@pytest.mark.parametrize("column", OWN_FIELDS)
def test_a_value_in_a_column_of_ones_own_costs_its_cell(
    superuser: Client, errands: Any, column: str
) -> None:
    value = OWN_FIELDS[column][1]
    job = errands.objects.create(stage="mine")
    put(job, column, value)
    cell = re.search(
        rf'(?s)<td class="field-{column}[^"]*">(.*?)</td>',
        html(superuser, "/admin/documents/errand/"),
    )
    assert cell is not None
    assert text(cell[1])[:3] == value[:3]
    address = f"/admin/documents/errand/{job.pk}/change/"
    assert f'name="{column}' not in html(superuser, address)
    assert superuser.post(address, {"stage": "b", "max_attempts": "3"}).status_code == 302
    assert as_text(job, column).startswith(value[:3])


def test_a_level_more_than_enough_is_too_deep() -> None:
    def nested(levels: int) -> Any:
        return json.loads("[" * levels + "]" * levels)

    assert not is_too_deep(nested(MOST_NESTED))
    assert is_too_deep(nested(MOST_NESTED + 1))
    assert is_too_deep({"a": nested(MOST_NESTED)})
    assert not is_too_deep("[" * 1000)
    assert not is_too_deep([[1], "x", {"y": None}])
