"""Models as three Django products have them, managed by Django and with their relations, are
adopted as they are: inherited tables, foreign keys for locks, Celery's words.
"""
# ruff: noqa: DJ008 (models as others have them)

import uuid
from typing import Any

import pytest
from django.db import models
from django.test.utils import isolate_apps

from jobreaper import tables
from jobreaper.exceptions import ConfigurationError
from jobreaper.tables import adoption
from tests.rows import Sql
from tests.tables.conftest import Adopt, Make
from tests.tables.products import States, ago, complaints, passed, states

__all__ = ["states"]

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def playbooks(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class UnifiedJob(models.Model):
            status = models.CharField(max_length=20, default="new", db_index=True)
            launch_type = models.CharField(max_length=20, default="manual")
            execution_node = models.TextField(blank=True, default="")
            started = models.DateTimeField(null=True, default=None)
            finished = models.DateTimeField(null=True, default=None)
            job_explanation = models.TextField(blank=True, default="")
            cancel_flag = models.BooleanField(default=False)

            class Meta:
                app_label = "documents"
                db_table = "unified_jobs"

        class PlaybookRun(UnifiedJob):
            playbook = models.CharField(max_length=100)

            class Meta:
                app_label = "documents"
                db_table = "playbook_runs"

        class Output(models.Model):
            job = models.ForeignKey(PlaybookRun, models.CASCADE)
            line = models.TextField()

            class Meta:
                app_label = "documents"
                db_table = "playbook_output"

    return make(UnifiedJob, PlaybookRun, Output)


UNIFIED: dict[str, Any] = {
    "columns": {
        "stage": "launch_type",
        "locked_by": "execution_node",
        "claimed_at": "started",
        "finished_at": "finished",
        "fail_reason": "job_explanation",
    },
    "words": {
        "queued": ["pending", "new", "waiting"],
        "processing": "running",
        "success": "successful",
        "failed": ["error", "failed"],
        "cancelled": "canceled",
    },
    "ttl": "1h",
    "on_expiry": "fail",
    "reclaim_only": True,
}


def test_the_parent_of_an_inherited_table_is_adopted(
    playbooks: list[Any], adopt: Adopt, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    unified, playbook, output = playbooks
    table = adopt(unified, **UNIFIED)
    assert complaints(table, monkeypatch) == []
    running = {"status": "running", "execution_node": "node-1"}
    lost = playbook.objects.create(playbook="site.yml", started=ago(hours=2), **running)
    output.objects.create(job=lost, line="ok")
    playbook.objects.create(playbook="site.yml", started=ago(minutes=50), **running)
    waiting = playbook.objects.create(playbook="site.yml", status="waiting", started=None)
    assert set(states(table).values()) == {"stale", "late"}
    assert passed(table) == {lost.pk: "failed"}
    lost.refresh_from_db()
    assert (lost.status, lost.execution_node) == ("error", "")
    assert lost.job_explanation == "RECLAIMED_TTL: Exceeded TTL (60 min)"
    assert lost.finished is not None
    waiting.refresh_from_db()
    assert waiting.status == "waiting"


def test_a_child_is_not_adopted_and_the_error_names_the_parent(
    playbooks: list[Any],
) -> None:
    _, playbook, _ = playbooks
    with pytest.raises(ConfigurationError, match=r"'unified_jobs': adopt documents\.UnifiedJob"):
        tables.register(playbook, **UNIFIED)
    assert playbook not in adoption._tables


def test_a_proxy_stands_for_its_table(playbooks: list[Any], adopt: Adopt) -> None:
    unified = playbooks[0]
    with isolate_apps("project.documents"):
        meta = type("Meta", (), {"proxy": True, "app_label": "documents"})
        proxy = type("Nightly", (unified,), {"Meta": meta, "__module__": __name__})
    table = adopt(proxy, **UNIFIED)
    try:
        assert table.model is unified
        assert tables.table_of(proxy) is tables.table_of(unified) is table
    finally:
        del adoption._tables[unified]


@pytest.fixture
def tasks(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class Worker(models.Model):
            pulp_id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            name = models.TextField(unique=True)

            class Meta:
                app_label = "documents"
                db_table = "pulp_workers"

        class Task(models.Model):
            pulp_id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            state = models.TextField()
            name = models.TextField()
            started_at = models.DateTimeField(null=True)
            finished_at = models.DateTimeField(null=True)
            error = models.JSONField(null=True)
            worker = models.ForeignKey(Worker, models.SET_NULL, null=True)
            parent_task = models.ForeignKey("self", models.SET_NULL, null=True)

            class Meta:
                app_label = "documents"
                db_table = "pulp_tasks"

    return make(Worker, Task)


def test_the_lock_may_be_a_foreign_key(
    tasks: list[Any], adopt: Adopt, sql: Sql, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_model, task_model = tasks
    table = adopt(
        task_model,
        # A field or its column will do.
        columns={
            "status": "state",
            "stage": "name",
            "locked_by": "worker",
            "claimed_at": "started_at",
        },
        words={
            "queued": "waiting",
            "processing": ["running", "canceling"],
            "success": "completed",
            "cancelled": "canceled",
        },
        ttl={"sync": "12h"},
        reclaim_only=True,
    )
    assert complaints(table, monkeypatch) == []
    worker = worker_model.objects.create(name="4711@host")
    held = {"name": "sync", "worker": worker, "started_at": ago(hours=13)}
    lost = [task_model.objects.create(state=state, **held) for state in ("running", "canceling")]
    other = task_model.objects.create(state="running", **{**held, "name": "repair"})
    assert states(table) == {
        **{str(task.pk): "stale" for task in lost},
        str(other.pk): "no limit",
    }
    assert passed(table) == {task.pk: "requeued" for task in lost}
    for task in lost:
        task.refresh_from_db()
        assert (task.state, task.worker, task.started_at) == ("waiting", None, None)
    [event, _] = sql("TABLE pulp_tasks_reclaim_history")
    assert event["locked_by"] == str(worker.pk)


@pytest.fixture
def results(make: Make) -> list[Any]:
    with isolate_apps("project.documents"):

        class JobResult(models.Model):
            id = models.UUIDField(primary_key=True, default=uuid.uuid4)
            name = models.CharField(max_length=255, db_index=True)
            status = models.CharField(max_length=30, default="PENDING")
            worker = models.CharField(max_length=100, null=True)
            date_created = models.DateTimeField(auto_now_add=True)
            date_started = models.DateTimeField(null=True)
            date_done = models.DateTimeField(null=True)
            result = models.JSONField(null=True)
            traceback = models.TextField(null=True)

            class Meta:
                app_label = "documents"
                db_table = "job_results"

    return make(JobResult)


def test_celerys_words_are_read_and_written(
    results: list[Any], adopt: Adopt, sql: Sql, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    [result] = results
    table = adopt(
        result,
        columns={
            "stage": "name",
            "locked_by": "worker",
            "claimed_at": "date_started",
            "finished_at": "date_done",
            "fail_reason": "traceback",
        },
        words={
            "queued": "PENDING",
            "processing": ["STARTED", "RETRY"],
            "success": "SUCCESS",
            "failed": "FAILURE",
            "cancelled": "REVOKED",
        },
        ttl="30m",
        max_attempts=2,
        reclaim_only=True,
    )
    assert complaints(table, monkeypatch) == []
    lost = result.objects.create(
        name="Backup", status="STARTED", worker="celery@a", date_started=ago(hours=1)
    )
    done = result.objects.create(name="Backup", status="SUCCESS", date_started=ago(hours=1))
    assert states(table) == {str(lost.pk): "stale"}
    assert passed(table) == {lost.pk: "requeued"}
    # Attempts are counted from the events, as the table does not count them.
    result.objects.filter(pk=lost.pk).update(status="RETRY", date_started=ago(hours=1))
    [reclaimed] = sql("SELECT * FROM job_results_reap()")
    assert reclaimed == {"job_id": str(lost.pk), "outcome": "failed"}
    lost.refresh_from_db()
    assert lost.status == "FAILURE"
    assert lost.traceback == "RECLAIMED_TTL: Exceeded TTL (30 min) - Max attempts reached"
    done.refresh_from_db()
    assert done.status == "SUCCESS"
