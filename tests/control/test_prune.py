"""What is deleted when it is old enough, and what never is."""

import json
import os
import pty
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import override_settings

from jobreaper import ConfigurationError, enqueue, prune
from jobreaper.celery.schedule import PRUNE, beat_schedule
from jobreaper.control.retention import PruneResult
from jobreaper.models import JobEvent, ReaperPass
from jobreaper.tables import register
from jobreaper.tables.adoption import _tables
from jobreaper.tasks import prune as prune_task
from project.documents.models import ExecutorJob
from project.media.models import Job as MediaJob
from tests.rows import Rows, Sql, ago
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("transactional_db")

DAY = 86_400

AGES = override_settings(
    JOBREAPER={
        "RETENTION": {
            "success": "1d",
            "failed": "2d",
            "cancelled": "3d",
            "events": "4d",
            "passes": "5d",
            "workers": "6d",
            "states": "7d",
        }
    }
)


def ended(jobs: Rows, status: str, days: float) -> Any:
    return jobs.plant(status=status, finished_at=ago(days * DAY))


def events(sql: Sql, days: float, n: int = 1) -> None:
    sql(
        "INSERT INTO job_events (job_id, data, at)"
        " SELECT n::text, '{}', statement_timestamp() + %s FROM generate_series(1, %s) AS n",
        ago(days * DAY),
        n,
    )


@AGES
def test_each_kind_has_its_age(jobs: Rows, sql: Sql) -> None:
    kept, old = [], []
    for status, days in (("success", 1), ("failed", 2), ("cancelled", 3)):
        kept.append(ended(jobs, status, days - 0.01))
        old.append(ended(jobs, status, days + 0.01))
    for event_days in (3.99, 4.01):
        events(sql, event_days)
    for pass_days in (4.99, 5.01):
        sql(
            "INSERT INTO jobreaper_passes (started_at, trigger, reaper, counts)"
            " VALUES (statement_timestamp() + %s, 'beat', 'r', '{}')",
            ago(pass_days * DAY),
        )
    for state_days in (6.99, 7.01):
        sql(
            'INSERT INTO jobreaper_states ("table", job_id, epoch, saved_at)'
            " VALUES ('jobs', %s, 1, statement_timestamp() + %s)",
            str(state_days),
            ago(state_days * DAY),
        )
    result = prune()
    assert result == PruneResult(
        deleted={
            "jobreaper_jobs": 3,
            "job_events": 1,
            "jobreaper_passes": 1,
            "jobreaper_states": 1,
            "jobreaper_workers": 0,
        }
    )
    assert set(jobs.all()) == set(kept)
    assert (JobEvent.objects.count(), ReaperPass.objects.count()) == (1, 1)


@AGES
def test_what_has_not_ended_is_kept_however_old(jobs: Rows) -> None:
    jobs.plant(created_at=ago(900 * DAY), next_earliest_run_at=ago(900 * DAY))
    jobs.plant_running(claimed_at=ago(900 * DAY))
    jobs.plant(status="success")
    jobs.plant(status="queued", finished_at=ago(900 * DAY))
    before = jobs.all()
    prune()
    assert jobs.all() == before


@override_settings(JOBREAPER={"RETENTION": {"success": None, "events": None}})
def test_none_keeps_for_ever(jobs: Rows, sql: Sql) -> None:
    kept = ended(jobs, "success", 3650)
    ended(jobs, "failed", 3650)
    events(sql, 3650)
    assert prune().deleted == {
        "jobreaper_jobs": 1,
        "jobreaper_passes": 0,
        "jobreaper_states": 0,
        "jobreaper_workers": 0,
    }
    assert set(jobs.all()) == {kept}
    assert JobEvent.objects.count() == 1


def test_without_settings_it_is_a_week_for_successes_and_a_month_for_the_rest(jobs: Rows) -> None:
    kept = [ended(jobs, "success", 6.9), ended(jobs, "failed", 29.9)]
    ended(jobs, "success", 7.1)
    ended(jobs, "failed", 30.1)
    prune()
    assert set(jobs.all()) == set(kept)


@AGES
def test_a_dry_run_counts_and_deletes_nothing(jobs: Rows, sql: Sql) -> None:
    for _ in range(3):
        ended(jobs, "success", 9)
    events(sql, 9, 2)
    result = prune(dry_run=True, batch_size=1)
    assert result.deleted == {
        "jobreaper_jobs": 3,
        "job_events": 2,
        "jobreaper_passes": 0,
        "jobreaper_states": 0,
        "jobreaper_workers": 0,
    }
    assert len(jobs.all()) == 3
    assert JobEvent.objects.count() == 2


@AGES
def test_batches_go_on_until_nothing_is_left(sql: Sql) -> None:
    events(sql, 9, 25)
    seen: list[tuple[str, int]] = []
    assert prune(batch_size=10, progress=lambda *step: seen.append(step)).is_complete
    assert JobEvent.objects.count() == 0
    assert [step for step in seen if step[1]] == [("job_events", n) for n in (10, 20, 25)]


@AGES
def test_when_its_time_is_spent_it_leaves_the_rest_to_the_next(sql: Sql) -> None:
    events(sql, 9, 25)
    result = prune(budget_sec=0)
    assert (result.is_complete, JobEvent.objects.count()) == (False, 25)


@AGES
def test_memory_stays_flat(sql: Sql) -> None:
    events(sql, 9, 40_000)
    prune(dry_run=True)
    tracemalloc.start()
    try:
        prune(batch_size=10_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert JobEvent.objects.count() == 0
    assert most < 1_000_000


@AGES
def test_rows_that_another_transaction_has_locked_are_left(
    jobs: Rows, second_connection: Any
) -> None:
    locked, free = ended(jobs, "success", 9), ended(jobs, "success", 9)
    second_connection.execute("SELECT 1 FROM jobreaper_jobs WHERE id = %s FOR UPDATE", [locked])
    assert prune().deleted["jobreaper_jobs"] == 1
    assert set(jobs.all()) == {locked}
    assert free not in jobs.all()


# Tables of one's own.


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(_tables)
    yield
    _tables.clear()
    _tables.update(before)


@AGES
def test_rows_of_other_tables_are_deleted_only_where_that_is_asked_for(
    sql: Sql, registered: None
) -> None:
    media = Rows(sql, "jobs")
    ended(media, "success", 900)
    assert "jobs" not in prune().deleted
    assert len(media.all()) == 1
    register(MediaJob, retention=True)
    assert prune().deleted["jobs"] == 1
    assert media.all() == {}


def test_a_table_without_the_columns_cannot_ask_for_it(registered: None) -> None:
    with pytest.raises(ConfigurationError, match="retention needs the columns of a lease"):
        register(ExecutorJob, columns={"status": "status"}, retention=True)


@AGES
def test_a_job_that_other_rows_refer_to_is_kept_and_nothing_cascades(
    sql: Sql, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """procrastinate#1454: pruning one row cascaded over millions."""
    from django.db import models

    media = Rows(sql, "jobs")
    referred, free = ended(media, "success", 9), ended(media, "success", 9)
    sql("CREATE TABLE invoices (id int, job_id bigint REFERENCES jobs ON DELETE CASCADE)")
    sql("INSERT INTO invoices VALUES (1, %s)", referred)

    class Invoice(models.Model):  # noqa: DJ008  nobody looks at it
        job = models.ForeignKey(MediaJob, models.CASCADE)

        class Meta:
            app_label = "media"
            db_table = "invoices"

    register(MediaJob, retention=True)
    try:
        assert prune().deleted["jobs"] == 1
        assert set(media.all()) == {referred}
        assert len(sql("TABLE invoices")) == 1
        assert free not in media.all()
    finally:
        sql("DROP TABLE invoices")
        del Invoice._meta.apps.all_models["media"]["invoice"]
        Invoice._meta.apps.clear_cache()


@AGES
def test_one_tables_trouble_stops_no_other(jobs: Rows, sql: Sql) -> None:
    ended(jobs, "success", 9)
    events(sql, 9)
    sql("ALTER TABLE jobreaper_passes RENAME TO away")
    try:
        result = prune()
    finally:
        sql("ALTER TABLE away RENAME TO jobreaper_passes")
    assert (result.deleted["jobreaper_jobs"], result.deleted["job_events"]) == (1, 1)
    [error] = result.errors
    assert error.startswith("jobreaper_passes: ")
    assert "manage.py migrate" in error


def test_batches_of_none_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        prune(batch_size=0)


# The command and the task.


@AGES
def test_the_command_says_what_it_deleted(
    jobs: Rows, sql: Sql, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(jobs, "success", 9)
    events(sql, 9, 1200)
    call_command("prune", dry_run=True)
    assert capsys.readouterr().out.splitlines() == [
        "jobreaper_jobs: 1 would be deleted",
        "job_events: 1,200 would be deleted",
        "jobreaper_passes: 0 would be deleted",
        "jobreaper_states: 0 would be deleted",
        "jobreaper_workers: 0 would be deleted",
    ]
    call_command("prune", format="json")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "deleted": {
            "jobreaper_jobs": 1,
            "job_events": 1200,
            "jobreaper_passes": 0,
            "jobreaper_states": 0,
            "jobreaper_workers": 0,
        },
        "dry_run": False,
        "errors": [],
    }
    # No terminal, no progress.
    assert "so far" not in captured.err


@AGES
def test_on_a_terminal_a_long_prune_shows_its_progress(sql: Sql) -> None:
    events(sql, 9, 25)
    controller, terminal = pty.openpty()
    with open(terminal, "w") as stderr:
        call_command("prune", batch_size=10, stderr=stderr)
        stderr.flush()
        shown = os.read(controller, 10_000).decode()
    os.close(controller)
    assert "job_events: 10 deleted so far" in shown
    assert "job_events: 20 deleted so far" in shown


@pytest.fixture
def slow_deleting(sql: Sql) -> Iterator[None]:
    """An event takes a tenth of a second to delete."""
    sql(
        """CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_sleep(0.1); RETURN OLD; END $$"""
    )
    sql(
        """CREATE TRIGGER take_time BEFORE DELETE ON job_events
           FOR EACH ROW EXECUTE FUNCTION take_time()"""
    )
    yield
    sql("DROP FUNCTION take_time() CASCADE")


@pytest.mark.process
@pytest.mark.parametrize("style", ["text", "json"])
def test_the_command_says_on_ctrl_c_what_it_has_deleted(
    style: str, slow_deleting: None, sql: Sql, database_url: str
) -> None:
    events(sql, 90, 50)
    command = subprocess.Popen(
        [sys.executable, "manage.py", "prune", "--batch-size", "5", "--format", style],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # In the middle of a batch.
    asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
    until(lambda: JobEvent.objects.count() <= 40 and sql(asleep, connection.settings_dict["NAME"]))
    command.send_signal(signal.SIGINT)
    told, problem = command.communicate(timeout=30)
    assert command.returncode == 130
    assert problem.splitlines()[-1] == "CommandError: stopped"
    assert "Traceback" not in problem
    deleted = 50 - JobEvent.objects.count()
    assert 0 < deleted < 50
    if style == "json":
        assert json.loads(told)["deleted"]["job_events"] == deleted
        assert json.loads(told)["errors"] == ["stopped"]
    else:
        assert f"job_events: {deleted} deleted" in told.splitlines()


@AGES
def test_the_command_exits_with_1_where_something_went_wrong(sql: Sql) -> None:
    sql("ALTER TABLE jobreaper_passes RENAME TO away")
    try:
        with pytest.raises(CommandError, match="jobreaper_passes: ") as failed:
            call_command("prune")
    finally:
        sql("ALTER TABLE away RENAME TO jobreaper_passes")
    assert failed.value.returncode == 1


@AGES
def test_the_task_prunes(jobs: Rows) -> None:
    ended(jobs, "success", 9)
    assert prune_task()["deleted"]["jobreaper_jobs"] == 1


def test_it_is_scheduled_so_often_that_a_beat_restarted_daily_runs_it() -> None:
    """django-logic#204: a 24-hour interval never fires when beat restarts daily."""
    [entry] = [entry for entry in beat_schedule().values() if entry["task"] == PRUNE]
    assert entry["schedule"] <= 3600


def test_a_finished_job_leaves_its_events_to_their_own_age(jobs: Rows) -> None:
    job = enqueue("mail")
    jobs.set(job.pk, status="success", finished_at=ago(8 * DAY))
    prune()
    assert jobs.all() == {}
    assert jobs.event_types(job.pk) == ["job:enqueued"]
