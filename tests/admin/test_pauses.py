"""Pausing and resuming in the admin, and how a job that waits is shown."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

import jobreaper
from jobreaper import claim_next, enqueue, pause, signals
from jobreaper.admin.own_jobs import JobForm
from jobreaper.control.pauses import paused
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent, Pause
from project.media.models import Job
from tests.admin.conftest import make_job
from tests.admin.pages import html, list_of, messages, page_of, text

pytestmark = pytest.mark.django_db

PAUSES = list_of(Pause)
ADD = f"{PAUSES}add/"
CLIP = {"table": "jobs", "name": "clip", "reason": "disk full"}


def resume(client: Client, *chosen: Pause) -> Any:
    return client.post(
        PAUSES,
        {"action": "delete_selected", "_selected_action": [str(each.pk) for each in chosen]},
        follow=True,
    )


def test_adding_a_pause_pauses(
    superuser: Client, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    make_job(stage="clip")
    caplog.set_level(logging.INFO, "jobreaper")
    with django_capture_on_commit_callbacks(execute=True):
        response = superuser.post(ADD, CLIP, follow=True)
    assert "clip of jobs" in messages(response)
    [row] = paused(Job)
    assert (row.name, row.reason, row.by) == ("clip", "disk full", "ada")
    assert claim_next(Job) == []
    assert [line for line in caplog.messages if line.startswith("paused ")] == [
        "paused table=jobs name=clip by=ada"
    ]
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_by_default_it_is_the_ready_made_table(superuser: Client) -> None:
    form = superuser.get(ADD).context["adminform"].form
    assert form.get_initial_for_field(form.fields["table"], "table") == "jobreaper_jobs"
    superuser.post(ADD, {"table": "jobreaper_jobs", "name": "mail", "reason": ""})
    [row] = paused()
    assert (row.name, row.reason) == ("mail", None)
    enqueue("mail", stage="letters")
    assert claim_next(OwnJob) == []


@pytest.mark.parametrize(
    "wrong", [{"table": "elsewhere"}, {"table": "executor_jobs"}, {"name": ""}, {"name": "a\x00"}]
)
def test_what_cannot_be_paused_is_a_mistake_in_the_form(
    superuser: Client, wrong: dict[str, str]
) -> None:
    assert superuser.post(ADD, {**CLIP, **wrong}).context["adminform"].form.errors
    assert not Pause.objects.exists()


def test_what_is_paused_already_is_said_and_left(superuser: Client) -> None:
    pause("clip", model=Job, by="grace", reason="mine")
    assert superuser.post(ADD, CLIP).context["adminform"].form.errors
    [row] = paused(Job)
    assert (row.by, row.reason) == ("grace", "mine")


def test_resuming_lets_the_jobs_run(
    superuser: Client, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    make_job(stage="clip")
    for name in ("clip", "asr", "burnin"):
        pause(name, model=Job)
    chosen = Pause.objects.exclude(name="burnin")
    caplog.set_level(logging.INFO, "jobreaper")
    with django_capture_on_commit_callbacks(execute=True):
        response = resume(superuser, *chosen)
    assert messages(response) == "2 were resumed."
    assert [row.name for row in paused(Job)] == ["burnin"]
    assert len(claim_next(Job)) == 1
    lines = [line for line in caplog.messages if line.startswith("resumed ")]
    assert lines == [f"resumed table=jobs name={name} by=ada" for name in ("asr", "clip")]
    assert LogEntry.objects.count() == 2


def test_deleting_a_pause_on_its_page_resumes(
    superuser: Client, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    pause("clip", model=Job)
    caplog.set_level(logging.INFO, "jobreaper")
    with django_capture_on_commit_callbacks(execute=True):
        superuser.post(page_of(Pause.objects.get(), "delete"), {"post": "yes"})
    assert paused(Job) == []
    assert "resumed table=jobs name=clip by=ada" in caplog.messages


def test_the_pause_of_a_table_that_is_gone_can_be_deleted(superuser: Client) -> None:
    gone = Pause.objects.create(table="gone", name="clip")
    resume(superuser, gone)
    assert not Pause.objects.exists()


def test_who_may_only_look_neither_pauses_nor_resumes(staff: Callable[..., Client]) -> None:
    pause("clip", model=Job, reason="disk full")
    viewer = staff("jobreaper.view_pause")
    assert "disk full" in html(viewer, PAUSES)
    assert viewer.post(ADD, {**CLIP, "name": "asr"}).status_code == 403
    row = Pause.objects.get()
    assert viewer.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
    resume(viewer, row)
    assert [each.name for each in paused(Job)] == ["clip"]


def test_each_permission_opens_its_own_verb(staff: Callable[..., Client]) -> None:
    operator = staff("jobreaper.view_pause", "jobreaper.delete_pause")
    pause("clip", model=Job)
    assert operator.post(ADD, {**CLIP, "name": "asr"}).status_code == 403
    resume(operator, Pause.objects.get())
    assert paused(Job) == []


def test_who_may_not_look_sees_nothing(staff: Callable[..., Client]) -> None:
    assert staff("media.view_job").get(PAUSES).status_code == 403


def test_a_pause_is_not_edited(superuser: Client) -> None:
    pause("clip", model=Job, reason="disk full")
    row = Pause.objects.get()
    assert superuser.post(page_of(row), {**CLIP, "name": "asr"}).status_code == 403
    assert 'name="_save"' not in html(superuser, page_of(row))
    assert "Delete selected" not in html(superuser, PAUSES)


# Jobs that wait


def test_a_queued_job_of_what_is_paused_is_shown_as_paused(superuser: Client) -> None:
    make_job(stage="clip")
    assert "paused" not in text(html(superuser, list_of(Job)))
    pause("clip", model=Job)
    assert "paused" in text(html(superuser, list_of(Job)))
    enqueue("mail", stage="letters")
    pause("mail")
    page = text(html(superuser, list_of(OwnJob)))
    assert "paused" in page
    assert "no handler" not in page


def test_a_queued_job_that_nobody_handles_is_shown_so(superuser: Client) -> None:
    job = enqueue("nobodys")
    assert "no handler" in text(html(superuser, list_of(OwnJob)))
    handled = jobreaper.job_handler("nobodys")
    try:
        handled(lambda job, lease: None)
        assert "no handler" not in text(html(superuser, list_of(OwnJob)))
    finally:
        from jobreaper.queue.handlers import _handlers

        _handlers.pop("nobodys")
    OwnJob.objects.filter(pk=job.pk).update(status="success")
    assert "no handler" not in text(html(superuser, list_of(OwnJob)))


def test_a_job_with_an_empty_payload_can_be_added_and_saved(superuser: Client) -> None:
    given = {"type": "mail", "payload": "{}", "priority": "0", "max_attempts": "3"}
    superuser.post(f"{list_of(OwnJob)}add/", given)
    job = OwnJob.objects.get()
    assert (job.payload, job.stage, job.status) == ({}, "mail", "queued")
    response = superuser.post(page_of(job), {**given, "stage": "mail", "priority": "7"})
    assert response.status_code == 302
    job.refresh_from_db()
    assert (job.payload, job.priority) == ({}, 7)


def test_a_second_job_with_a_live_dedupe_key_is_a_mistake_in_the_form(superuser: Client) -> None:
    given = {"type": "mail", "payload": "{}", "priority": "0", "max_attempts": "3"}
    enqueue("mail", dedupe="skip", dedupe_key="k")
    response = superuser.post(f"{list_of(OwnJob)}add/", {**given, "dedupe_key": "k"})
    assert response.context["adminform"].form.errors
    assert OwnJob.objects.count() == 1


def test_a_job_added_by_hand_is_made_as_enqueue_makes_it(
    superuser: Client, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[Any] = []

    def hear(sender: Any, pks: list[Any], **_: Any) -> None:
        told.extend(pks)

    given = {
        "type": "mail",
        "payload": '{"n": 1}',
        "priority": "2",
        "max_attempts": "4",
        "org_id": "acme",
        "dedupe_key": "k",
        "expected_duration_ms": "900",
    }
    signals.jobs_enqueued.connect(hear)
    with django_capture_on_commit_callbacks(execute=True):
        response = superuser.post(f"{list_of(OwnJob)}add/", {**given, "_continue": "1"})
    job = OwnJob.objects.get()
    assert response["Location"] == page_of(job)
    assert (job.payload, job.priority, job.max_attempts) == ({"n": 1}, 2, 4)
    assert (job.org_id, job.dedupe_key, job.expected_duration_ms) == ("acme", "k", 900)
    assert OwnJob.objects.due().get().next_earliest_run_at is not None
    [event] = JobEvent.objects.filter(job_id=str(job.pk))
    assert (event.type, event.table) == ("job:enqueued", "jobreaper_jobs")
    assert told == [job.pk]
    assert LogEntry.objects.get().object_id == str(job.pk)


def test_a_new_job_without_an_attempt_is_a_mistake_in_the_form(superuser: Client) -> None:
    given = {"type": "mail", "payload": "{}", "priority": "0", "max_attempts": "0"}
    response = superuser.post(f"{list_of(OwnJob)}add/", given)
    assert "max_attempts" in response.context["adminform"].form.errors
    assert not OwnJob.objects.exists()


def test_a_key_that_is_taken_after_the_form_was_checked_makes_no_second_job(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobForm, "clean_dedupe_key", lambda form: form.cleaned_data["dedupe_key"])
    enqueue("mail", dedupe="skip", dedupe_key="k")
    given = {"type": "mail", "payload": "{}", "priority": "0", "max_attempts": "3"}
    response = superuser.post(f"{list_of(OwnJob)}add/", {**given, "dedupe_key": "k"})
    assert response.status_code == 403
    assert OwnJob.objects.count() == 1
