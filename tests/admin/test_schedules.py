"""Schedules in the admin: whether they make jobs, when, and what an operator may do to them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import now
from pytest_django import Settings

from jobreaper.models import Job, Schedule
from jobreaper.schedule.declared import declared
from tests.admin.pages import html, list_of, messages, page_of, text

pytestmark = pytest.mark.django_db

SCHEDULES = list_of(Schedule)


@pytest.fixture
def report(settings: Settings) -> Schedule:
    daily = {"cron": "0 6 * * 1-5", "timezone": "Europe/Berlin"}
    settings.JOBREAPER = {"SCHEDULE": {"report": daily}}
    definition = declared()["report"].definition()
    return Schedule.objects.create(
        name="report", definition=definition, next_at=now() + timedelta(hours=1)
    )


def act(client: Client, action: str, *schedules: Schedule) -> Any:
    chosen = [schedule.pk for schedule in schedules]
    return client.post(SCHEDULES, {"action": action, "_selected_action": chosen}, follow=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "0 6 * * 1-5 Europe/Berlin"),
        ({"paused_at": now(), "paused_by": "ann"}, "paused ann"),
        ({"error": "violates <check>"}, "error violates <check>"),
        ({"definition": {"cron": "0 7 * * *"}}, "changed no worker has started with it yet"),
        ({"definition": [5]}, "changed"),
        ({"name": "gone"}, "not declared"),
    ],
)
def test_the_list_says_whether_it_makes_jobs_and_why_not(
    changes: dict[str, Any], said: str, report: Schedule, superuser: Client
) -> None:
    fields = {"definition": report.definition, "name": report.name, **changes}
    report.delete()
    shown = Schedule.objects.create(**fields)
    for page in (SCHEDULES, page_of(shown)):
        assert said in " ".join(text(html(superuser, page)).split())


def test_a_job_is_made_now_and_linked(report: Schedule, superuser: Client) -> None:
    said = messages(act(superuser, "run_now", report))
    [job] = Job.objects.all()
    assert said == f"report: the job {job.pk} was made."
    assert f'<a href="{page_of(job)}">{job.pk}</a>' in html(superuser, SCHEDULES)


def test_it_is_paused_and_resumed(report: Schedule, superuser: Client) -> None:
    assert messages(act(superuser, "pause", report)) == "report was paused."
    report.refresh_from_db()
    assert report.paused_at is not None
    assert messages(act(superuser, "resume", report)) == "report was resumed."
    report.refresh_from_db()
    assert report.paused_by is None
    assert messages(act(superuser, "resume", report)) == ""


@pytest.mark.parametrize("action", ["run_now", "pause", "resume"])
@pytest.mark.parametrize("may_act", [False, True])
def test_only_those_who_may_change_them_act(
    may_act: bool, action: str, report: Schedule, staff: Callable[..., Client]
) -> None:
    if action == "resume":
        Schedule.objects.update(paused_at=now())
    change = ["jobreaper.change_schedule"] if may_act else []
    client = staff("jobreaper.view_schedule", *change)
    assert ("Make a job now" in html(client, SCHEDULES)) == may_act
    before = Schedule.objects.values_list("paused_at", "job_id").get()
    act(client, action, report)
    assert (Schedule.objects.values_list("paused_at", "job_id").get() != before) == may_act
