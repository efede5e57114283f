"""Deleting jobs in the admin: never one that a worker has in hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.signals import post_save
from django.test import Client

import jobreaper
from project.media.models import Job
from tests.admin.conftest import claimed, make_job
from tests.admin.pages import list_of, messages, page_of, text

pytestmark = pytest.mark.django_db


def delete(client: Client, *jobs: Job) -> Any:
    data = {"action": "delete_selected", "_selected_action": [job.pk for job in jobs]}
    return client.post(list_of(Job), {**data, "post": "yes"}, follow=True)


def test_jobs_that_are_not_running_are_deleted(superuser: Client) -> None:
    jobs = [make_job(status=status) for status in ("queued", "success", "failed", "cancelled")]
    assert messages(delete(superuser, *jobs)) == "Successfully deleted 4 jobs."
    assert not Job.objects.exists()


def test_a_running_job_among_them_stops_it_and_is_named(superuser: Client) -> None:
    idle, lease = make_job(), claimed()
    page = text(delete(superuser, idle, lease.job).content.decode())
    assert f"clip {lease.pk}, which is processing: cancel it first" in page
    assert Job.objects.count() == 2
    lease.finish()


def test_the_page_of_a_running_job_does_not_delete_it(superuser: Client) -> None:
    lease = claimed()
    response = superuser.post(page_of(lease.job, "delete"), {"post": "yes"})
    assert "which is processing: cancel it first" in text(response.content.decode())
    lease.finish()
    superuser.post(page_of(lease.job, "delete"), {"post": "yes"})
    assert not Job.objects.exists()


@pytest.fixture
def claim_before_delete(db: None) -> Iterator[None]:
    """A worker claims the job after it was found idle: Django logs a deletion before it does it."""

    def claim(sender: type[LogEntry], instance: LogEntry, **_: Any) -> None:
        assert jobreaper.claim(Job, int(instance.object_id or 0)) is not None

    post_save.connect(claim, sender=LogEntry)
    yield
    post_save.disconnect(claim, sender=LogEntry)


def test_a_job_claimed_meanwhile_is_kept_and_that_is_said(
    superuser: Client, claim_before_delete: None
) -> None:
    said = messages(delete(superuser, make_job()))
    assert "1 job was kept: a worker has it in hand." in said
    assert Job.objects.get().status == "processing"


def test_a_job_claimed_while_its_page_deletes_it_is_kept(
    superuser: Client, claim_before_delete: None
) -> None:
    job = make_job()
    response = superuser.post(page_of(job, "delete"), {"post": "yes"})
    assert response.status_code == 403
    assert Job.objects.filter(pk=job.pk).exists()
