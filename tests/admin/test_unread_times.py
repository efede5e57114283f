"""Times that PostgreSQL knows and Python does not, as a person at psql may write them: every page
opens, shows them as they are and leaves them as they are.
"""

import re
from typing import Any

import pytest
from django.db import connection, models
from django.test import Client
from pytest_django import Settings

from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent, Pause, ReaperPass
from project.media.models import Job
from tests.admin.conftest import execute, make_job
from tests.admin.pages import html, list_of, page_of, text

pytestmark = pytest.mark.django_db

OUT_OF_RANGE = ["infinity", "-infinity", "20000-01-01 00:00:00+00", "4000-01-01 00:00:00+00 BC"]
TIMES = [
    field.name for field in Job._meta.concrete_fields if isinstance(field, models.DateTimeField)
]
EDITED = {"stage": "asr", "max_attempts": "3", "expected_duration_ms": "", "payload": "{}"}


def put(row: models.Model, column: str, moment: str) -> None:
    execute(f"UPDATE {row._meta.db_table} SET {column} = %s WHERE id = %s", moment, row.pk)


def shows(page: str, word: str, moment: str) -> bool:
    # From Django 6 on the help stands between the two.
    return re.search(rf"{word}: (?:[^:]+\. )?{re.escape(moment)}", page) is not None


def as_text(row: models.Model, column: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}::text FROM {row._meta.db_table} WHERE id = %s", [row.pk])
        return cursor.fetchone()[0]


@pytest.mark.parametrize("moment", OUT_OF_RANGE)
@pytest.mark.parametrize("status", ["processing", "queued", "failed"])
def test_the_list_and_the_page_of_a_job_show_it(
    superuser: Client, status: str, moment: str
) -> None:
    job = make_job(status=status)
    for column in TIMES:
        put(job, column, moment)
    assert superuser.get(list_of(Job)).status_code == 200
    page = text(html(superuser, page_of(job)))
    for word in ("Claimed at", "Last heartbeat at", "Lease expires at", "Deadline at"):
        assert shows(page, word, moment)
    for other in ("history", "delete"):
        assert superuser.get(page_of(job, other)).status_code == 200


def test_a_last_moment_that_is_later_still_where_the_reader_is_is_shown(
    superuser: Client, settings: Settings
) -> None:
    settings.TIME_ZONE = "Pacific/Auckland"
    job = make_job(status="processing")
    put(job, "lease_expires_at", "9999-12-31 23:59:59+00")
    page = text(html(superuser, page_of(job)))
    assert shows(page, "Lease expires at", "9999-12-31 23:59:59+00")


@pytest.mark.parametrize("model", [Job, OwnJob])
def test_one_such_time_alone_is_in_nobodys_way(superuser: Client, model: Any) -> None:
    fields = {"type": "mail"} if model is OwnJob else {}
    for column in TIMES:
        put(model.objects.create(status="processing", **fields), column, "infinity")
    assert superuser.get(list_of(model)).status_code == 200
    for pk in model.objects.values_list("pk", flat=True):
        assert superuser.get(page_of(model(pk=pk))).status_code == 200


def test_a_lease_without_end_says_so(superuser: Client) -> None:
    live, expired, due = make_job(status="processing"), make_job(status="processing"), make_job()
    execute("UPDATE jobs SET last_heartbeat_at = now()")
    put(live, "lease_expires_at", "infinity")
    put(expired, "lease_expires_at", "-infinity")
    put(due, "next_earliest_run_at", "infinity")
    page = text(html(superuser, list_of(Job)))
    assert "live infinity left" in page
    assert "expired -infinity ago" in page
    assert re.search(rf"{due.pk} queued clip - - 0 / 3 - infinity", page)


@pytest.mark.parametrize(
    ("action", "status"),
    [("requeue_jobs", "queued"), ("fail_jobs", "failed"), ("cancel_jobs", "cancelled")],
)
def test_the_verbs_apply_to_such_a_job(superuser: Client, action: str, status: str) -> None:
    job = make_job(status="processing")
    for column in TIMES:
        put(job, column, "infinity")
    chosen = {"action": action, "_selected_action": [job.pk], "reason": ""}
    assert "?" in superuser.post(list_of(Job), chosen).content.decode()
    assert superuser.post(list_of(Job), {**chosen, "confirmed": "1"}).status_code == 302
    assert Job.objects.values_list("status", flat=True).get() == status


def test_such_a_job_can_be_deleted(superuser: Client) -> None:
    one, other = make_job(), make_job()
    for job in (one, other):
        put(job, "created_at", "infinity")
    superuser.post(page_of(one, "delete"), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    superuser.post(list_of(Job), chosen)
    assert not Job.objects.exists()


@pytest.mark.parametrize("is_editable", [False, True])
def test_a_form_leaves_such_a_time_as_it_is(
    superuser: Client, is_editable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job._meta.get_field("created_at"), "editable", is_editable)
    job = make_job()
    put(job, "created_at", "infinity")
    put(job, "lease_expires_at", "-infinity")
    assert "Created at: infinity" in text(html(superuser, page_of(job)))
    forged = {"created_at_0": "2020-01-01", "created_at_1": "00:00:00"}
    assert superuser.post(page_of(job), {**EDITED, **forged}).status_code == 302
    assert as_text(job, "stage") == "asr"
    assert as_text(job, "created_at") == "infinity"
    assert as_text(job, "lease_expires_at") == "-infinity"


@pytest.mark.parametrize("moment", OUT_OF_RANGE)
def test_what_is_on_record_shows_it(superuser: Client, moment: str) -> None:
    job = make_job()
    events = [JobEvent.objects.create(job_id=str(job.pk), data={"table": "jobs"}) for _ in range(3)]
    a_pass = ReaperPass.objects.create(trigger="command", reaper="r", counts={})
    put(events[1], "at", moment)
    put(a_pass, "started_at", moment)
    for page in (page_of(job), list_of(JobEvent), page_of(events[1])):
        assert moment in text(html(superuser, page))
    for page in (list_of(ReaperPass), page_of(a_pass)):
        assert moment in text(html(superuser, page))


def test_a_pause_since_ever_is_shown_and_ends(superuser: Client) -> None:
    pause = Pause.objects.create(table="jobs", name="clip")
    put(pause, "at", "-infinity")
    assert "-infinity" in text(html(superuser, list_of(Pause)))
    add = {"table": "jobs", "name": "asr", "reason": ""}
    assert superuser.post(list_of(Pause) + "add/", add).status_code == 302
    chosen = {"action": "delete_selected", "_selected_action": [pause.pk]}
    assert superuser.post(list_of(Pause), chosen).status_code == 302
    assert Pause.objects.values_list("name", flat=True).get() == "asr"
