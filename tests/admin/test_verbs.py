"""Requeue, fail and cancel in the admin: who may, what is asked, what is done, what is said."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils.timezone import now

import jobreaper
from jobreaper.admin import verbs
from jobreaper.control import by_hand
from jobreaper.models import JobEvent
from project.media.models import Job
from tests.admin.conftest import claimed, execute, job_of, make_job
from tests.admin.pages import html, list_of, listed, messages, page_of, text

pytestmark = pytest.mark.django_db

JOBS = list_of(Job)
ACTIONS = ["requeue_jobs", "fail_jobs", "cancel_jobs"]
OUTCOMES = [
    ("requeue_jobs", "queued", "admin:requeued", "1 job was requeued."),
    ("fail_jobs", "failed", "admin:failed", "1 job was failed."),
    ("cancel_jobs", "cancelled", "admin:cancelled", "1 job was cancelled."),
]


def choose(client: Client, action: str, *jobs: Job, **more: str) -> Any:
    """Choose an action in the list, as a browser posts it."""
    data = {"action": action, "_selected_action": [str(job.pk) for job in jobs], "index": "0"}
    return client.post(JOBS + more.pop("query", ""), {"select_across": "0", **data, **more})


def confirm(client: Client, action: str, *jobs: Job, **more: str) -> Any:
    """Say yes on the page that asks."""
    data = {"action": action, "_selected_action": [str(job.pk) for job in jobs]}
    return client.post(
        JOBS + more.pop("query", ""), {**data, "confirmed": "yes", **more}, follow=True
    )


def statuses(*jobs: Job) -> list[str]:
    return [Job.objects.get(pk=job.pk).status for job in jobs]


@pytest.fixture(params=["superuser", "change permission"])
def operator(request: pytest.FixtureRequest, staff: Callable[..., Client]) -> Client:
    """Whoever may change jobs."""
    if request.param == "superuser":
        return request.getfixturevalue("superuser")  # type: ignore[no-any-return]
    return staff("media.view_job", "media.change_job")


@pytest.mark.parametrize(("action", "status", "event_type", "said"), OUTCOMES)
def test_an_operator_is_asked_and_then_it_is_done(
    operator: Client, action: str, status: str, event_type: str, said: str
) -> None:
    lease = claimed()
    asked = choose(operator, action, lease.job)
    assert "Reason" in text(asked.content.decode())
    assert statuses(lease.job) == ["processing"]
    assert not JobEvent.objects.exists()

    done = confirm(operator, action, lease.job, reason="disk was full")
    assert messages(done) == said
    assert statuses(lease.job) == [status]
    event = JobEvent.objects.get()
    assert (event.type, event.table, event.job_id) == (event_type, "jobs", str(lease.pk))
    assert event.details["by"] == "ada"
    assert event.details["reason"] == "disk was full"
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.get_username()) == (str(lease.pk), "ada")
    assert "disk was full" in entry.change_message
    with pytest.raises(jobreaper.LeaseLost):
        lease.heartbeat()


def test_a_job_that_is_due_later_is_made_due_and_one_that_is_due_has_no_such_button(
    operator: Client,
) -> None:
    later = make_job(next_earliest_run_at=now() + timedelta(days=1), attempt_count=2)
    due = make_job()
    pages = html(operator, page_of(later)), html(operator, page_of(due))
    assert ["Run now" in page for page in pages] == [True, False]
    done = confirm(operator, "run_jobs_now", later, due, reason="the customer waits")
    assert "1 job was made due." in messages(done)
    assert "1 was not made due: it is not queued for later, or has left" in messages(done)
    later.refresh_from_db()
    assert later.next_earliest_run_at is not None
    assert later.next_earliest_run_at <= now()
    assert (later.status, later.attempt_count) == ("queued", 2)
    assert JobEvent.objects.get().details["reason"] == "the customer waits"
    assert "Run now" not in html(operator, page_of(later))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("may_delete", [False, True])
def test_who_may_only_view_can_neither_see_nor_post_it(
    staff: Callable[..., Client], action: str, may_delete: bool
) -> None:
    client = staff("media.view_job", *(["media.delete_job"] if may_delete else []))
    lease = claimed()
    assert action not in html(client, JOBS)
    choose(client, action, lease.job)
    confirm(client, action, lease.job)
    confirm(client, action, lease.job, select_across="1")
    confirm(client, action, lease.job, from_job_page="1")
    assert statuses(lease.job) == ["processing"]
    lease.heartbeat()


@pytest.mark.parametrize("action", ACTIONS)
def test_permission_on_another_table_is_none_on_this_one(
    staff: Callable[..., Client], action: str
) -> None:
    client = staff("media.view_job", "media.change_asrjob", "jobreaper.change_job")
    lease = claimed()
    confirm(client, action, lease.job)
    assert statuses(lease.job) == ["processing"]


@pytest.mark.parametrize("action", ACTIONS)
def test_who_is_not_signed_in_is_sent_to_the_login(db: None, action: str) -> None:
    lease = claimed()
    for response in (
        choose(Client(), action, lease.job),
        confirm(Client(), action, lease.job),
    ):
        url = response.headers.get("Location") or response.redirect_chain[0][0]
        assert url.startswith("/admin/login/")
    assert statuses(lease.job) == ["processing"]


@pytest.mark.parametrize("action", ACTIONS)
def test_no_reason_is_needed(superuser: Client, action: str) -> None:
    confirm(superuser, action, claimed().job)
    assert JobEvent.objects.get().details["reason"] is None


def test_what_was_not_changed_is_said(superuser: Client) -> None:
    done, cancelled, running = make_job(status="success"), make_job(status="cancelled"), claimed()
    asked = text(choose(superuser, "fail_jobs", done, cancelled, running.job).content.decode())
    assert "Fail 1 job?" in asked
    assert "processing live 1 failed in another status 2 left as they are" in asked
    said = messages(confirm(superuser, "fail_jobs", done, cancelled, running.job))
    assert said == (
        "1 job was failed. | 2 were not failed: "
        "they are not queued or processing, or have left the list meanwhile."
    )
    assert statuses(done, cancelled, running.job) == ["success", "cancelled", "failed"]


def test_a_success_is_never_requeued(superuser: Client) -> None:
    done = make_job(status="success")
    asked = choose(superuser, "requeue_jobs", done).content.decode()
    assert "This can be done to none of them." in asked
    assert 'type="submit"' not in asked[asked.index('id="content"') :]
    confirm(superuser, "requeue_jobs", done)
    assert statuses(done) == ["success"]


def test_a_requeued_job_has_all_its_attempts_again(superuser: Client) -> None:
    job = make_job(status="failed", attempt_count=3, fail_code="timeout")
    confirm(superuser, "requeue_jobs", job)
    job.refresh_from_db()
    assert (job.status, job.attempt_count, job.fail_code) == ("queued", 0, None)
    assert jobreaper.claim(Job, job.pk) is not None


def test_a_job_that_left_the_filter_since_is_left_alone(superuser: Client) -> None:
    lease, other = claimed(), claimed()
    execute("UPDATE jobs SET lease_expires_at = now() - interval '1 s'")
    choose(superuser, "cancel_jobs", lease.job, other.job, query="?lease=expired")
    execute("UPDATE jobs SET lease_expires_at = now() + interval '1 h' WHERE id = %s", lease.pk)
    said = messages(confirm(superuser, "cancel_jobs", lease.job, other.job, query="?lease=expired"))
    assert said.startswith("1 job was cancelled. | 1 was not cancelled")
    assert statuses(lease.job, other.job) == ["processing", "cancelled"]


# All across pages


def test_all_across_pages_means_all_that_match_the_filters(superuser: Client) -> None:
    clips = Job.objects.bulk_create([Job(stage="clip") for _ in range(130)])
    others = [make_job(stage="asr"), make_job(stage="clip", status="success")]
    query = "?stage=clip&status=queued"
    asked = choose(superuser, "cancel_jobs", clips[0], select_across="1", query=query)
    page = text(asked.content.decode())
    assert "Cancel 130 jobs?" in page
    assert "and 110 more" in page
    assert "every job that matches" in page
    assert 'name="select_across" value="1"' in asked.content.decode()
    said = messages(confirm(superuser, "cancel_jobs", clips[0], select_across="1", query=query))
    assert said == "130 jobs were cancelled."
    assert set(statuses(*clips)) == {"cancelled"}
    assert statuses(*others) == ["queued", "success"]
    assert JobEvent.objects.count() == LogEntry.objects.count() == 130


def test_all_across_pages_of_a_filter_that_is_empty_by_now_is_nothing(superuser: Client) -> None:
    lease = claimed(worker="gone:1:a")
    bystander = make_job()
    lease.release()
    confirm(superuser, "fail_jobs", lease.job, select_across="1", query="?worker=gone:1:a")
    assert statuses(lease.job, bystander) == ["queued", "queued"]


def test_many_jobs_are_changed_batch_by_batch(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "BATCH", 2)
    jobs = [make_job() for _ in range(5)]
    assert messages(confirm(superuser, "fail_jobs", *jobs)) == "5 jobs were failed."
    assert set(statuses(*jobs)) == {"failed"}


def test_a_request_that_takes_too_long_keeps_what_is_done_and_says_so(
    superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "BATCH", 2)
    monkeypatch.setattr(verbs, "ENOUGH_SEC", 0)
    jobs = [make_job() for _ in range(5)]
    said = messages(confirm(superuser, "fail_jobs", *jobs))
    assert said.startswith("2 jobs were failed. | That took too long")
    assert sorted(statuses(*jobs)) == ["failed"] * 2 + ["queued"] * 3


def test_a_few_jobs_among_very_many_that_are_done_are_found(superuser: Client) -> None:
    execute(
        "INSERT INTO jobs (stage, status) SELECT 'clip', 'success' FROM generate_series(1, 10100)"
    )
    failed = make_job(status="failed")
    asked = text(choose(superuser, "requeue_jobs", failed, select_across="1").content.decode())
    assert "Requeue 1 job?" in asked
    assert "in another status more than 10,000 left as they are" in asked
    said = messages(confirm(superuser, "requeue_jobs", failed, select_across="1"))
    assert said == "1 job was requeued."
    assert Job.objects.filter(status="success").count() == 10100
    assert statuses(failed) == ["queued"]


# What goes wrong


@pytest.mark.parametrize(
    ("reason", "why"),
    [("y" * 1001, "at most 1000 characters"), ("nul \x00 here", "Null characters")],
)
def test_a_bad_reason_loses_neither_the_selection_nor_the_text(
    superuser: Client, reason: str, why: str
) -> None:
    jobs = [make_job(), make_job()]
    page = confirm(superuser, "cancel_jobs", *jobs, reason=reason).content.decode()
    assert why in page
    assert reason in page
    for job in jobs:
        assert f'name="_selected_action" value="{job.pk}"' in page
    assert statuses(*jobs) == ["queued", "queued"]


def test_a_locked_row_is_reported_and_can_be_tried_again(
    superuser: Client,
    second_connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_hand, "LOCK_TIMEOUT_SEC", 0.05)
    free, locked = make_job(), make_job()
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [locked.pk])
    said = messages(confirm(superuser, "cancel_jobs", free, locked))
    assert said == (
        "Another transaction has locked one of the jobs, or their table. Try again in a moment. "
        "Nothing was changed."
    )
    assert statuses(free, locked) == ["queued", "queued"]
    assert not LogEntry.objects.exists()
    second_connection.rollback()
    assert messages(confirm(superuser, "cancel_jobs", free, locked)) == "2 jobs were cancelled."


def test_what_the_database_refuses_is_said(superuser: Client) -> None:
    job = make_job(status="failed")
    execute("ALTER TABLE jobs ADD CONSTRAINT never_again CHECK (status <> 'queued') NOT VALID")
    said = messages(confirm(superuser, "requeue_jobs", job))
    assert said.startswith("The database refused: ")
    assert "never_again" in said
    assert said.endswith("Nothing was changed.")


def test_a_lock_met_half_way_keeps_what_is_done_and_says_so(
    superuser: Client,
    second_connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_hand, "LOCK_TIMEOUT_SEC", 0.05)
    monkeypatch.setattr(verbs, "BATCH", 1)
    first, locked, last = make_job(), make_job(), make_job()
    second_connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", [locked.pk])
    said = messages(confirm(superuser, "cancel_jobs", first, locked, last))
    assert said.startswith("1 job was cancelled. | Another transaction has locked")
    assert said.endswith("The rest was not changed.")
    assert statuses(first, locked, last) == ["cancelled", "queued", "queued"]


# From a job's page


@pytest.mark.parametrize(("action", "status", "event_type", "said"), OUTCOMES)
def test_a_button_on_a_jobs_page_asks_and_leads_back_to_it(
    superuser: Client, action: str, status: str, event_type: str, said: str
) -> None:
    lease = claimed()
    posted = {"action": action, "_selected_action": str(lease.pk), "from_job_page": "1"}
    asked = superuser.post(JOBS, posted).content.decode()
    assert 'name="from_job_page" value="1"' in asked
    assert statuses(lease.job) == ["processing"]
    done = confirm(superuser, action, lease.job, from_job_page="1")
    assert done.redirect_chain == [(page_of(lease.job), 302)]
    assert messages(done) == said
    assert job_of(lease).status == status
    assert listed(superuser, JOBS) == [lease.pk]
