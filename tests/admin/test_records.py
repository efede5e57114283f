"""JobEvents and ReaperPasses: read-only, filtered by type and table."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import JSONField, Value
from django.test import Client
from django.test.utils import CaptureQueriesContext

import jobreaper
from jobreaper import control
from jobreaper.models import JobEvent, ReaperPass
from project.media.models import AsrJob, Job
from tests.admin.conftest import claimed, execute, make_job
from tests.admin.pages import html, list_of, listed, page_of, text

pytestmark = pytest.mark.django_db

EVENTS = list_of(JobEvent)
PASSES = list_of(ReaperPass)
SCRIPT = "<script>alert(1)</script>"


def event(**data: Any) -> JobEvent:
    job_id = str(data.pop("job_id", 1))
    made: JobEvent = JobEvent.objects.create(job_id=job_id, data=data)
    return made


@pytest.mark.parametrize(
    ("model", "fields"),
    [(JobEvent, {"job_id": "1", "data": {}}), (ReaperPass, {"reaper": "r"})],
)
def test_nobody_adds_changes_or_deletes_a_record(
    superuser: Client, model: type[Any], fields: dict[str, Any]
) -> None:
    row = model.objects.create(**fields)
    before = model.objects.values().get()
    assert superuser.post(f"{list_of(model)}add/", {"job_id": "2"}).status_code == 403
    assert superuser.post(page_of(row), {"job_id": "2", "reaper": "x"}).status_code == 403
    assert superuser.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
    superuser.post(
        list_of(model), {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    )
    assert model.objects.values().get() == before
    page = html(superuser, page_of(row))
    assert 'name="_save"' not in page
    assert "<textarea" not in page


@pytest.mark.parametrize("address", [EVENTS, PASSES, list_of(Job)])
def test_records_are_for_those_who_may_view_them(
    staff: Callable[..., Client], address: str
) -> None:
    assert Client().get(address).status_code == 302
    assert staff("media.view_asrjob").get(address).status_code == 403


# Events


def test_events_are_filtered_by_type_and_table(superuser: Client) -> None:
    wanted = event(type="job:failed", table="jobs")
    event(type="job:failed", table="asr_jobs")
    event(type="reaper:failed(timeout)", table="jobs")
    assert listed(superuser, f"{EVENTS}?type=job:failed&table=jobs") == [wanted.pk]


def test_types_and_tables_on_offer_come_from_the_code(superuser: Client) -> None:
    event(type="foreign:word", table="foreign")
    page = html(superuser, EVENTS)
    assert "?type=reaper%3Afailed%28poison%29" in page
    offered = set(re.findall(r'href="\?table=([^"]*)"', page))
    assert {"jobs", "asr_jobs", "jobreaper_jobs"} <= offered
    assert "foreign" not in offered
    assert "foreign%3Aword" not in page


def test_a_type_that_is_not_on_offer_can_be_asked_for(superuser: Client) -> None:
    wanted = event(type="foreign:word")
    event(type="job:failed")
    assert listed(superuser, f"{EVENTS}?type=foreign:word") == [wanted.pk]


def test_events_are_found_by_the_exact_job_id(superuser: Client) -> None:
    wanted = [event(job_id="12"), event(job_id="12")]
    event(job_id="123")
    assert listed(superuser, f"{EVENTS}?q=12") == [wanted[1].pk, wanted[0].pk]


def test_an_event_leads_to_its_job(superuser: Client) -> None:
    job = make_job()
    control.cancel(Job, [job.pk], by="ada")
    link = f'<a href="{page_of(job)}">{job.pk}</a>'
    assert link in html(superuser, EVENTS)
    assert link in html(superuser, page_of(JobEvent.objects.get()))


@pytest.mark.parametrize("data", [{"table": "elsewhere"}, {}])
def test_an_event_of_an_unknown_table_leads_nowhere(
    superuser: Client, data: dict[str, str]
) -> None:
    event(job_id=7, **data)
    page = html(superuser, EVENTS)
    assert "/7/change/" not in re.sub(r"/jobevent/\d+/change/", "", page)


def test_an_event_shows_who_did_what_and_why(superuser: Client) -> None:
    job = make_job()
    control.cancel(Job, [job.pk], by="grace", reason="not needed")
    page = text(html(superuser, EVENTS))
    assert "admin:cancelled jobs" in page
    assert "grace attempt 0, epoch 0, reason not needed, was queued" in page
    page = text(html(superuser, page_of(JobEvent.objects.get())))
    assert "An operator cancelled the job" in page
    assert '"reason": "not needed"' in page


# Passes


@pytest.fixture
def passes(db: None) -> dict[str, ReaperPass]:
    """A pass of each outcome."""
    return {
        "reaped": ReaperPass.objects.create(
            reaper="a:1:b",
            trigger="beat",
            duration_ms=2013,
            requeued=3,
            failed=1,
            counts={
                "jobs": {"requeued": 3, "failed": 1},
                "asr_jobs": {"requeued": 0, "failed": 0},
            },
        ),
        "nothing to do": ReaperPass.objects.create(
            reaper="a:1:b", trigger="command", counts={"jobs": {"requeued": 0, "failed": 0}}
        ),
        "held": ReaperPass.objects.create(
            reaper="a:1:b", trigger="sql", held=True, held_reason="PostgreSQL came up 12 s ago"
        ),
        "error": ReaperPass.objects.create(
            reaper="a:1:b", trigger="python", error="jobs: <b>lock timeout</b>"
        ),
    }


@pytest.mark.parametrize("outcome", ["reaped", "nothing to do", "held", "error"])
def test_passes_are_filtered_by_outcome(
    superuser: Client, passes: dict[str, ReaperPass], outcome: str
) -> None:
    assert listed(superuser, f"{PASSES}?outcome={outcome}") == [passes[outcome].pk]


def test_passes_are_filtered_by_trigger_and_table(
    superuser: Client, passes: dict[str, ReaperPass]
) -> None:
    assert listed(superuser, f"{PASSES}?trigger=sql") == [passes["held"].pk]
    assert listed(superuser, f"{PASSES}?table=asr_jobs") == [passes["reaped"].pk]
    assert listed(superuser, f"{PASSES}?outcome=elsewhere") == []


def test_a_pass_shows_what_it_did_and_why_not(
    superuser: Client, passes: dict[str, ReaperPass]
) -> None:
    page = html(superuser, PASSES)
    assert "lock timeout</b>" not in page
    shown = text(page)
    assert "2.0 s beat a:1:b jobs: 3 requeued, 1 failed reaped" in shown
    assert "held PostgreSQL came up 12 s ago" in shown
    assert "error jobs: <b>lock timeout</b>" in shown
    assert "PostgreSQL came up 12 s ago" in text(html(superuser, page_of(passes["held"])))
    assert "Jobs by table: - Outcome:" in text(html(superuser, page_of(passes["nothing to do"])))


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([1], "[1]"),
        (None, "None"),
        ({"jobs": 5}, "jobs: 5"),
        ({"jobs": {"requeued": SCRIPT}}, f"jobs: {SCRIPT} requeued"),
        ({"jobs": {}}, "-"),
    ],
)
def test_a_pass_that_a_foreign_writer_recorded_shows_what_is_there(
    superuser: Client, counts: Any, shown: str
) -> None:
    run = ReaperPass.objects.create(trigger="sql", reaper="r", counts=Value(counts, JSONField()))
    for page in (html(superuser, PASSES), html(superuser, page_of(run))):
        assert shown in text(page)
        assert SCRIPT not in page


def test_a_real_pass_is_shown(superuser: Client) -> None:
    claimed()
    execute("UPDATE jobs SET lease_expires_at = now() - interval '1 s'")
    jobreaper.reap([Job, AsrJob])
    assert "jobs: 1 requeued reaped" in text(html(superuser, PASSES))


# Large tables


@pytest.mark.parametrize(
    ("address", "table"),
    [
        (EVENTS, "job_events"),
        (f"{EVENTS}?type=job:failed&table=jobs&q=1", "job_events"),
        (PASSES, "jobreaper_passes"),
        (f"{PASSES}?outcome=held&table=jobs", "jobreaper_passes"),
    ],
)
def test_records_are_never_counted_to_the_end(superuser: Client, address: str, table: str) -> None:
    with CaptureQueriesContext(connection) as captured:
        html(superuser, address)
    over_table = [q["sql"] for q in captured if f'FROM "{table}"' in q["sql"]]
    assert over_table
    for statement in over_table:
        assert "DISTINCT" not in statement
        assert "COUNT(" not in statement or "LIMIT 10001" in statement
    assert len(captured) <= 7


def test_many_events_are_estimated(superuser: Client) -> None:
    execute(
        "INSERT INTO job_events (job_id, data)"
        " SELECT n, %s::jsonb FROM generate_series(1, 10100) AS n",
        json.dumps({"type": "job:finished", "table": "jobs"}),
    )
    execute("ANALYZE job_events")
    assert "about 10,100 job events" in text(html(superuser, EVENTS))
    assert "more than 10,000 job events" in text(html(superuser, f"{EVENTS}?table=jobs"))
    with CaptureQueriesContext(connection) as captured:
        html(superuser, EVENTS)
    assert len(captured) <= 6
