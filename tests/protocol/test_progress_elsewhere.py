"""Progress told by SQL functions, and where people see it."""

import json
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.test import Client

import jobreaper
from jobreaper import claim, enqueue
from jobreaper.explaining.reported import in_words
from jobreaper.models import Job, JobEvent
from jobreaper.states import Why
from tests.admin.pages import html, list_of, page_of, text
from tests.metrics.page import scrape_again
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

SHOWN = "40 of 100 (40 %): page 40"


@pytest.fixture
def job(settings: Any) -> Job:
    """A running job that has reported something, in a stage where jobs can stall."""
    settings.JOBREAPER = {"STAGES": {"scan": {"stall_after": "10m"}}}
    lease = claim(Job, enqueue("scan").pk)
    assert lease is not None
    lease.progress(40, 100, "page 40")
    lease.heartbeat()
    return Job.objects.get()


@pytest.mark.usefixtures("as_before")
def test_workers_in_other_languages_report_with_a_function(settings: Any, sql: Sql) -> None:
    settings.JOBREAPER = {"STAGES": {"scan": {"stall_after": "10m"}}}
    call_command("reaper_sql", "--install", stdout=StringIO())
    enqueue("scan")
    [claimed] = sql("SELECT id, lease_epoch FROM jobreaper_jobs_claim('w')")
    key, epoch = str(claimed["id"]), claimed["lease_epoch"]
    told = "SELECT jobreaper_jobs_progress(%s, %s, %s, %s, %s, %s) AS held"
    assert sql(told, key, "w", epoch, 3, 10, "x" * 999) == [{"held": True}]
    job: Any = Job.objects.get()
    assert job.progress == {"done": 3, "total": 10, "note": "x" * 200}
    assert (job.stalls_at - job.progress_at).total_seconds() == 600
    assert sql(told, key, "w", None, 3.5, None, None) == [{"held": True}]
    for stale in ((key, "w", epoch - 1), (key, "other", None)):
        assert sql(told, *stale, 9, 10, None) == [{"held": False}]
    for done in (-1, None, "NaN"):
        with pytest.raises(psycopg.Error, match="done and total must be"):
            sql(told, key, "w", epoch, done, 10, None)
    assert Job.objects.get().progress == {"done": 3.5}


def test_people_see_it(job: Job, client: Client) -> None:
    assert SHOWN in {r.code: r.text for r in jobreaper.explain(job).reasons}[Why.PROGRESS]
    assert jobreaper.explain(job).as_dict()["progress"] == job.progress
    assert "It counts as stalled in " in str(jobreaper.explain(job))
    for command in ("jobs show {} --table jobreaper_jobs", "explain {} --table jobreaper_jobs"):
        out = StringIO()
        call_command(*command.format(job.pk).split(), stdout=out)
        assert SHOWN in out.getvalue()
    client.force_login(User.objects.create_superuser("ada"))
    assert SHOWN in text(html(client, page_of(job)))
    assert SHOWN in text(html(client, list_of(Job)))


@pytest.mark.usefixtures("as_before")
def test_a_stalled_job_is_named_in_the_views_and_among_those_that_stand_still(
    job: Job, client: Client, sql: Sql
) -> None:
    call_command("reaper_sql", "--install", stdout=StringIO())
    sql(
        "UPDATE jobreaper_jobs SET claimed_at = claimed_at - interval '20 min', "
        "progress_at = progress_at - interval '20 min', stalls_at = now() - interval '1 min', "
        "lease_expires_at = now() - interval '1 min', last_heartbeat_at = now()"
    )
    [seen] = sql("SELECT state, progress, stalls_at FROM jobreaper_jobs_stale_monitor")
    progress = seen["progress"]
    assert seen["state"] == "stale"
    assert (json.loads(progress) if isinstance(progress, str) else progress) == job.progress
    assert sql("SELECT progress FROM executor_jobs_stale_monitor") == []
    assert Why.STALLED in {reason.code for reason in jobreaper.explain(job).reasons}
    client.force_login(User.objects.create_superuser("ada"))
    page = text(html(client, "/admin/jobreaper/reaper/"))
    assert "It stalled 1 min" in page
    assert SHOWN in page
    jobreaper.reap([Job], hold=False)
    assert SHOWN in text(html(client, page_of(job)))
    metric = {"table": "jobreaper_jobs", "reason": "stalled"}
    assert scrape_again().value("jobreaper_taken_back_total", **metric) == 1
    assert JobEvent.objects.latest("id").details["reason"] == "stalled"


def test_a_stage_that_stalls_is_reported_for_tables_without_the_fields(settings: Any) -> None:
    settings.JOBREAPER = {"STAGES": {"scan": {"stall_after": "10m"}}}
    found = [m for m in run_checks(tags=["jobreaper"]) if m.id == "jobreaper.W029"]
    assert {message.msg.split("'")[3] for message in found} == {"jobs", "asr_jobs"}
    assert all("TracksProgress" in str(message.hint) for message in found)


WORDS = [
    (None, ""),
    ({"done": 1}, "1"),
    ({"done": 0.333333, "total": 1}, "0.33 of 1 (33 %)"),
    ({"done": 12, "total": 10}, "12 of 10 (120 %)"),
    ({"done": 0, "total": 0}, "0 of 0 (100 %)"),
    ({"done": 999, "total": 1000}, "999 of 1,000 (99 %)"),
    ("anything", "anything"),
    ({"note": "x"}, "{'note': 'x'}"),
]


def test_it_is_told_in_words_whatever_was_written() -> None:
    assert [in_words(progress) for progress, _ in WORDS] == [said for _, said in WORDS]


def test_no_index_has_the_columns() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'jobreaper_jobs'")
        indexes = " ".join(definition for (definition,) in cursor.fetchall())
    assert "idx_jobreaper_jobs_status_lease" in indexes
    assert not [name for name in ("progress", "stalls_at") if name in indexes]
