"""Why a queued job waits, in the words that the page and the command have too."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from django.utils.timezone import now

import jobreaper
from jobreaper.models import Job as QueueJob
from jobreaper.models import RefusedRow, Worker
from jobreaper.states import Verb, Why, WorkerKind
from project.media.models import Job
from tests.admin.conftest import make_job

pytestmark = pytest.mark.django_db


def codes(job: Any) -> list[Why]:
    return [reason.code for reason in jobreaper.explain(job).reasons]


def test_a_job_for_later_says_when_it_is_due() -> None:
    job = make_job(next_earliest_run_at=now() + timedelta(hours=2, seconds=55))
    found = jobreaper.explain(job)
    assert codes(job) == [Why.NOT_DUE]
    assert found.next_at == job.next_earliest_run_at
    assert "in 2 h 0 min" in found.headline


def test_a_paused_job_says_who_paused_it_and_why() -> None:
    jobreaper.pause("clip", model=Job, by="ada", reason="disk full")
    found = jobreaper.explain(make_job())
    assert found.reasons[0].code is Why.PAUSED
    assert "ada" in found.headline
    assert "disk full" in found.headline
    assert "manage.py resume clip" in found.reasons[0].remedy


def test_a_job_that_nothing_handles_says_so() -> None:
    job = QueueJob.objects.create(type="unheard_of")
    assert Why.NO_HANDLER in codes(job)


def test_a_job_of_a_full_stage_names_the_jobs_that_fill_it() -> None:
    running = make_job()
    jobreaper.claim(Job, running.pk, worker="w:1:a")
    waiting = make_job()
    with override_settings(JOBREAPER={"STAGES": {"clip": {"max_running": 1}}}):
        found = jobreaper.explain(waiting)
    [full] = [reason for reason in found.reasons if reason.code is Why.STAGE_FULL]
    assert f" {running.pk} " in full.text
    with override_settings(JOBREAPER={"STAGES": {"clip": {"max_running": 2}}}):
        assert Why.STAGE_FULL not in codes(waiting)


def test_a_job_of_a_paused_or_full_queue_says_so() -> None:
    running = QueueJob.objects.create(type="mail", queue="slow")
    waiting = QueueJob.objects.create(type="mail", queue="slow")
    other = QueueJob.objects.create(type="mail")
    assert jobreaper.claim(QueueJob, running.pk, worker="w:1:a")
    with override_settings(JOBREAPER={"QUEUES": {"slow": {"max_running": 1}}}):
        [full] = [r for r in jobreaper.explain(waiting).reasons if r.code is Why.STAGE_FULL]
        assert str(running.pk) in full.text
        assert Why.STAGE_FULL not in codes(other)
    jobreaper.pause("queue:slow", by="ada")
    assert Why.PAUSED in codes(waiting)
    assert Why.PAUSED not in codes(other)


def test_a_row_that_cannot_be_written_says_why() -> None:
    job = make_job()
    RefusedRow.objects.create(
        table="jobs",
        verb=Verb.CLAIM,
        key=str(job.pk),
        error="violates check constraint",
        next_try_at=now() + timedelta(minutes=3),
    )
    found = jobreaper.explain(job)
    assert found.reasons[0].code is Why.REFUSED
    assert "violates check constraint" in found.headline


@pytest.mark.parametrize("kind", [WorkerKind.WORK, WorkerKind.CELERY])
def test_no_worker_is_here_until_one_is(kind: WorkerKind) -> None:
    others = {WorkerKind.WORK: WorkerKind.CELERY, WorkerKind.CELERY: WorkerKind.WORK}
    is_for_celery = kind is WorkerKind.CELERY
    with override_settings(JOBREAPER={"PRESENCE_GRACE_SEC": "5s"}):
        job = make_job() if is_for_celery else QueueJob.objects.create(type="unheard_of")
        here = {"host": "w", "pid": 1, "version": "0", "is_direct": False}
        Worker.objects.create(worker="w:1:a", kind=others[kind], **here)
        assert Why.NO_WORKER in codes(job)
        Worker.objects.create(worker="w:2:b", kind=kind, **here)
        assert Why.NO_WORKER not in codes(job)


def test_a_job_with_nothing_in_its_way_is_in_line() -> None:
    Worker.objects.create(
        worker="w:1:a", kind=WorkerKind.CELERY, host="w", pid=1, version="0", is_direct=False
    )
    found = jobreaper.explain(make_job(next_earliest_run_at=now() - timedelta(minutes=5)))
    [reason] = found.reasons
    assert not reason.blocks
    assert found.next


def test_what_explain_reads_it_does_not_write() -> None:
    job = make_job()
    before = Job.objects.filter(pk=job.pk).values().get()
    jobreaper.explain(job)
    assert Job.objects.filter(pk=job.pk).values().get() == before


def test_a_job_that_is_gone_cannot_be_explained() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).delete()
    with pytest.raises(Job.DoesNotExist):
        jobreaper.explain(job)


class TestLocked:
    @pytest.mark.parametrize("shared", [False, True], ids=["for update", "changed"])
    def test_the_backend_that_has_locked_the_row_is_named(
        self, transactional_db: None, second_connection: psycopg.Connection[Any], shared: bool
    ) -> None:
        job = make_job()
        statement = (
            f"UPDATE jobs SET stage = 'secret' WHERE id = {job.pk}"
            if shared
            else f"SELECT FROM jobs WHERE id = {job.pk} FOR UPDATE"
        )
        second_connection.execute(statement.encode())
        found = jobreaper.explain(job)
        [locked] = [reason for reason in found.reasons if reason.code is Why.LOCKED]
        assert str(second_connection.info.backend_pid) in locked.text
        assert "idle in transaction" in locked.text
        assert "secret" not in locked.text
        second_connection.rollback()
        assert Why.LOCKED not in codes(job)

    def test_ones_own_transaction_is_in_nobodys_way(self) -> None:
        job = make_job()
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=job.pk)
            assert Why.LOCKED not in codes(job)


class TestCommand:
    def output(self, *arguments: str) -> str:
        out = StringIO()
        call_command("explain", *arguments, stdout=out)
        return out.getvalue()

    def test_it_prints_the_same_words(self) -> None:
        job = make_job(next_earliest_run_at=now() + timedelta(hours=2))
        text = self.output(str(job.pk), "--table", "jobs")
        assert text.startswith(f"jobs {job.pk}: queued\n")
        assert "It is not due until" in text
        assert "→ Run it now" in text

    def test_json_has_codes(self) -> None:
        job = make_job(next_earliest_run_at=now() + timedelta(hours=2))
        found = json.loads(self.output(str(job.pk), "--table", "jobs", "--format", "json"))
        assert found["reasons"][0]["code"] == "not_due"
        assert found["job"] == str(job.pk)

    @pytest.mark.parametrize(("key", "code"), [("123456", 1), ("no number", 2)])
    def test_a_job_that_is_not_there_is_an_error(self, key: str, code: int) -> None:
        with pytest.raises(CommandError) as caught:
            self.output(key, "--table", "jobs")
        assert caught.value.returncode == code
