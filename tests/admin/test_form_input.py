"""Whatever is sent to a form or an address comes back as a mistake in it, never as an error 500."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.test import Client

from jobreaper import enqueue, pause
from jobreaper.admin import LeasedJobAdmin
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent, Pause, ReaperPass
from project.media.models import Job
from tests.admin.conftest import execute, make_job
from tests.admin.own import own_jobs
from tests.admin.pages import html, list_of, messages, page_of, text

pytestmark = pytest.mark.django_db

BAD_JSON = {
    "NaN": "NaN",
    "infinity": "[Infinity, -Infinity]",
    "larger than a float": "1e5000",
    "endless": "9" * 5000,
    "deep": "[" * 5000 + "]" * 5000,
    "a level too deep": "[" * 101 + "]" * 101,
    "NUL": '{"a": "\\u0000"}',
    "NUL as it is": '{"a": "\x00"}',
    "NUL in a key": '{"\\u0000": 1}',
    "half a pair": '{"a": "\\ud800"}',
    "the other half": '["\\udfff"]',
    "no JSON": "{'a': 1}",
    "an open string": '"',
}
NEW = {"type": "mail", "payload": "{}", "max_attempts": "3", "priority": "0"}
EDITED = {"stage": "asr", "max_attempts": "3", "expected_duration_ms": "", "payload": "{}"}


def errors_of(answer: Any) -> Any:
    """The mistakes that a page names; it must be a page."""
    assert answer.status_code == 200
    return answer.context["adminform"].form.errors


@pytest.mark.parametrize("payload", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_json_that_cannot_be_stored_is_a_mistake_and_is_shown_again(
    superuser: Client, payload: str
) -> None:
    add = f"{list_of(OwnJob)}add/"
    answer = superuser.post(add, {**NEW, "payload": payload})
    assert {*errors_of(answer)} == {"payload"}
    assert not OwnJob.objects.exists()
    assert answer.context["adminform"].form["payload"].value() == payload
    job = make_job(payload={"kept": 1})
    answer = superuser.post(page_of(job), {**EDITED, "payload": payload})
    assert {*errors_of(answer)} == {"payload"}
    job.refresh_from_db()
    assert job.payload == {"kept": 1}


@pytest.mark.parametrize(
    "payload",
    ['"\\ud83e\\udd84"', "[" * 100 + "]" * 100, '{"a": 1e300}', "9" * 4000, '"\\\\u0000"', "null"],
)
def test_json_that_can_be_stored_is_taken(superuser: Client, payload: str) -> None:
    answer = superuser.post(f"{list_of(OwnJob)}add/", {**NEW, "payload": payload})
    assert answer.status_code == 302, errors_of(answer)
    assert html(superuser, page_of(OwnJob.objects.get()))


@pytest.mark.parametrize("name", ["type", "stage", "org_id", "dedupe_key"])
@pytest.mark.parametrize("value", ["a\x00b", "\x00"])
def test_a_text_with_nul_is_a_mistake(superuser: Client, name: str, value: str) -> None:
    answer = superuser.post(f"{list_of(OwnJob)}add/", {**NEW, name: value})
    assert {*errors_of(answer)} == {name}


@pytest.mark.parametrize("name", ["type", "stage", "org_id"])
def test_a_name_without_bounds_is_a_mistake(superuser: Client, name: str) -> None:
    add = f"{list_of(OwnJob)}add/"
    assert {*errors_of(superuser.post(add, {**NEW, name: "x" * 256}))} == {name}
    assert superuser.post(add, {**NEW, name: "\U0001f984" * 255}).status_code == 302
    if name == "stage":
        answer = superuser.post(page_of(make_job()), {**EDITED, name: "x" * 256})
        assert {*errors_of(answer)} == {name}


def test_the_name_of_a_pause_has_bounds(superuser: Client) -> None:
    add = f"{list_of(Pause)}add/"
    sent = {"table": "jobs", "reason": "\U0001f984" * 20_000}
    assert {*errors_of(superuser.post(add, {**sent, "name": "x" * 256}))} == {"name"}
    assert superuser.post(add, {**sent, "name": "\U0001f984" * 255}).status_code == 302
    assert html(superuser, list_of(Pause))


@pytest.mark.parametrize("name", ["max_attempts", "priority", "expected_duration_ms"])
@pytest.mark.parametrize("value", ["9" * 20, "-" + "9" * 20, "9" * 5000, "1e400", "NaN", "0x10"])
def test_a_number_out_of_range_is_a_mistake(superuser: Client, name: str, value: str) -> None:
    for address, fields in ((f"{list_of(OwnJob)}add/", NEW), (page_of(make_job()), EDITED)):
        if name != "priority" or fields is NEW:
            assert {*errors_of(superuser.post(address, {**fields, name: value}))} == {name}


class Owned(LeasedJobAdmin):
    """Jobs of a user, chosen by key."""

    raw_id_fields = ("owner",)


@pytest.fixture
def errands(db: None) -> Iterator[Any]:
    with own_jobs(
        made_by=Owned,
        moment=models.DateTimeField(null=True, blank=True),
        day=models.DateField(null=True, blank=True),
        span=models.DurationField(null=True, blank=True),
        ratio=models.FloatField(null=True, blank=True),
        price=models.DecimalField(null=True, blank=True, max_digits=9, decimal_places=2),
        owner=models.ForeignKey(
            User, models.CASCADE, null=True, blank=True, to_field="username", related_name="+"
        ),
    ) as model:
        yield model


ADD = "/admin/documents/errand/add/"
OWN = {"stage": "mine", "max_attempts": "3"}


@pytest.mark.parametrize(
    "sent",
    [
        {"moment_0": "10000-01-01", "moment_1": "00:00"},
        {"moment_0": "0000-01-01", "moment_1": "00:00"},
        {"moment_0": "2026-02-30", "moment_1": "25:00"},
        {"day": "99999-12-31"},
        {"span": "99999999999999999"},
        {"span": "999999999999999999999 00:00:00"},
        {"ratio": "NaN"},
        {"ratio": "1e999"},
        {"price": "NaN"},
        {"price": "1e999999"},
        {"owner": "no\x00body"},
        {"owner": "nobody"},
    ],
    ids=str,
)
def test_what_a_column_of_ones_own_cannot_hold_is_a_mistake(
    superuser: Client, errands: Any, sent: dict[str, str]
) -> None:
    assert errors_of(superuser.post(ADD, {**OWN, **sent}))
    assert not errands.objects.exists()


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Lima"])
def test_the_first_and_the_last_day_are_taken_or_refused_and_the_list_opens(
    superuser: Client, errands: Any, day: str, zone: str, settings: Any
) -> None:
    settings.TIME_ZONE = zone
    for hour in ("00:00", "23:59:59"):
        answer = superuser.post(ADD, {**OWN, "moment_0": day, "moment_1": hour})
        assert answer.status_code in (200, 302)
    assert html(superuser, "/admin/documents/errand/")
    for pk in errands.objects.values_list("pk", flat=True):
        assert html(superuser, f"/admin/documents/errand/{pk}/change/")


def test_what_the_database_refuses_is_a_mistake_of_the_form(
    superuser: Client, errands: Any
) -> None:
    execute("ALTER TABLE errands ADD CONSTRAINT polite CHECK (stage <> 'rude')")
    errors = errors_of(superuser.post(ADD, {**OWN, "stage": "rude"}))
    assert "polite" in str(errors["__all__"])
    superuser.post(ADD, OWN)
    job = errands.objects.get()
    answer = superuser.post(f"/admin/documents/errand/{job.pk}/change/", {**OWN, "stage": "rude"})
    assert "polite" in text(answer.content.decode())
    assert answer.context["adminform"].form["stage"].value() == "rude"
    assert errands.objects.get().stage == "mine"


REFUSING = """
CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE 'not on a Sunday'; END$$;
CREATE TRIGGER refuse BEFORE {verb} ON errands EXECUTE FUNCTION pg_temp.refuse()
"""


def test_what_a_trigger_refuses_is_said(superuser: Client, errands: Any) -> None:
    job = errands.objects.create(stage="mine")
    execute(REFUSING.format(verb="INSERT OR DELETE"))
    assert "not on a Sunday" in str(errors_of(superuser.post(ADD, OWN)))
    page = f"/admin/documents/errand/{job.pk}/delete/"
    assert "not on a Sunday" in messages(superuser.post(page, {"post": "yes"}, follow=True))
    chosen = {"action": "delete_selected", "_selected_action": [job.pk], "post": "yes"}
    said = messages(superuser.post("/admin/documents/errand/", chosen, follow=True))
    assert "not on a Sunday" in said
    assert errands.objects.exists()


@pytest.mark.parametrize(
    "key", ["abc", "", "1.5", "9" * 30, "1\x00", "\x00", "-1", "NaN", "' or 1"]
)
@pytest.mark.parametrize("model", [Job, OwnJob, Pause])
def test_an_action_on_what_is_no_key_changes_nothing(
    superuser: Client, model: Any, key: str
) -> None:
    make_job()
    enqueue("mail")
    pause("clip", model=Job)
    actions = ["delete_selected"] + (["cancel_jobs"] if model is not Pause else [])
    for action in actions:
        for more in ({}, {"confirmed": "yes"}, {"confirmed": "yes", "from_job_page": "1"}):
            sent = {"action": action, "_selected_action": key, **more}
            assert superuser.post(list_of(model), sent).status_code in (200, 302)
    assert [*Job.objects.values_list("status", flat=True)] == ["queued"]
    assert [*OwnJob.objects.values_list("status", flat=True)] == ["queued"]
    assert Pause.objects.exists()


@pytest.mark.parametrize(
    "query",
    [
        "id=abc",
        "id__in=1,abc",
        "lease_epoch=99999999999999999999999",
        "lease_epoch=" + "9" * 5000,
        "locked_by__regex=(",
        "created_at__year=99999999",
        "created_at__gte=99999-01-01",
        "created_at__gte=0001-01-01+00:00:00",
        "payload__a=NaN",
        "payload=%7B",
        "payload__contains=%5B",
        "p=99999999999999999999",
        "p=-1",
        "p=abc",
        "o=99999999999999999999.-1.abc",
        "all=",
        "q=%00",
        "q=" + "%F0%9F%A6%84" * 1000,
        "stage=%ED%A0%80",
        "nonsense__x=1",
        "e=1&id=abc",
        "_facets=1",
        "database=nowhere",
        "_changelist_filters=%00%FF",
    ],
)
@pytest.mark.parametrize("model", [Job, OwnJob, JobEvent, ReaperPass, Pause])
def test_an_address_that_makes_no_sense_is_a_page(
    superuser: Client, model: Any, query: str
) -> None:
    make_job()
    assert superuser.get(f"{list_of(model)}?{query}").status_code in (200, 302)
    assert superuser.get(f"{list_of(model)}?{query}", follow=True).status_code == 200


@pytest.mark.parametrize("key", ["%00", "a%00b", "9" * 30, "abc", "_00", "%ED%A0%80", "..%2F"])
@pytest.mark.parametrize("page", ["change", "history", "delete"])
def test_a_page_of_a_key_that_cannot_be_leads_away(superuser: Client, key: str, page: str) -> None:
    for model in (Job, OwnJob, JobEvent, ReaperPass, Pause):
        answer = superuser.get(f"{list_of(model)}{key}/{page}/")
        assert answer.status_code in (302, 403, 404), (model, answer.status_code)
    with own_jobs(code=models.CharField(primary_key=True, max_length=9)):
        assert superuser.get(f"/admin/documents/errand/{key}/{page}/").status_code in (302, 404)


@pytest.mark.parametrize("moment", ["9999-12-31", "0001-01-01"])
def test_a_lease_of_ages_is_shown(superuser: Client, moment: str) -> None:
    job = make_job(status="processing")
    execute("UPDATE jobs SET lease_expires_at = %s, last_heartbeat_at = %s", moment, moment)
    assert html(superuser, list_of(Job))
    assert html(superuser, page_of(job))


def test_no_answer_shows_the_row_that_the_database_refused(
    superuser: Client, errands: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL's DETAIL has the whole row in it, and what is in a row is nobody's business."""
    job = errands.objects.create(stage="mine", fail_reason="s3cret")
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    execute("ALTER TABLE errands ADD CONSTRAINT polite CHECK (stage <> 'rude') NOT VALID")
    execute("ALTER TABLE errands ADD CONSTRAINT kept CHECK (status = 'queued') NOT VALID")
    address = f"/admin/documents/errand/{job.pk}/change/"
    said = str(errors_of(superuser.post(address, {**OWN, "stage": "rude"})))
    sent = {"action": "cancel_jobs", "_selected_action": job.pk, "confirmed": "yes"}
    said += messages(superuser.post("/admin/documents/errand/", sent, follow=True))
    assert "polite" in said
    assert "kept" in said
    for text_of in (said, caplog.text):
        assert "s3cret" not in text_of
        assert "Failing row" not in text_of
