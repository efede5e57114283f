"""A list whose filter has no index looks at the newest rows, and leads further back."""

import re
from html import unescape

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client

from jobreaper.admin import window
from jobreaper.models import Job as OwnJob
from jobreaper.models import JobEvent
from project.media.models import Job
from tests.admin.conftest import execute
from tests.admin.pages import html, list_of, listed

pytestmark = pytest.mark.django_db

CLIPS = f"{list_of(Job)}?stage=clip"


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than three rows are looked at."""
    monkeypatch.setattr(window, "LOOKED_AT", 3)
    monkeypatch.setattr(window, "LOOKED_AT_ELSEWHERE", 3)


def further_back(client: Client, address: str) -> str | None:
    found = re.search(r'<a href="([^"]*)">Look further back', html(client, address))
    return found and address.partition("?")[0] + unescape(found[1])


def test_each_look_further_back_shows_the_rows_before(superuser: Client) -> None:
    keys = [Job.objects.create(stage=stage).pk for stage in ("clip", "asr", "clip", "asr", "clip")]
    assert listed(superuser, CLIPS) == [keys[4], keys[2]]
    assert "at least 2" in html(superuser, CLIPS)
    before = further_back(superuser, CLIPS)
    assert before is not None
    assert listed(superuser, before) == [keys[0]]
    assert further_back(superuser, before) is None
    # Another page of it stays there.
    assert f"before={keys[2]}" in superuser.get(before).context["cl"].get_query_string({"p": 2})


def test_what_an_index_finds_is_found_however_old_it_is(superuser: Client) -> None:
    keys = [Job.objects.create(stage="clip").pk for _ in range(5)]
    assert listed(superuser, f"{list_of(Job)}?status=queued") == keys[::-1]
    assert listed(superuser, f"{CLIPS}&status=queued") == keys[::-1]
    assert listed(superuser, list_of(Job)) == keys[::-1]
    assert listed(superuser, f"{CLIPS}&q={keys[0]}") == [keys[0]]


def test_jobs_that_have_ended_are_in_the_order_of_their_end(superuser: Client) -> None:
    jobs = [OwnJob.objects.create(type="mail", status="failed") for _ in range(5)]
    for ago, job in enumerate(jobs):
        execute(
            "UPDATE jobreaper_jobs SET finished_at = now() - %s * interval '1 min' WHERE id = %s",
            ago,
            job.pk,
        )
    keys = [job.pk for job in jobs]
    address = f"{list_of(OwnJob)}?status=failed"
    assert listed(superuser, address) == keys[:3]
    before = further_back(superuser, address)
    assert before is not None
    assert listed(superuser, before) == keys[3:]


def test_an_action_on_all_that_match_is_for_those_further_back_too(superuser: Client) -> None:
    for _ in range(5):
        Job.objects.create(stage="clip")
    posted = {"action": "cancel_jobs", "select_across": "1", ACTION_CHECKBOX_NAME: "0"}
    superuser.post(CLIPS, {**posted, "confirmed": "yes"})
    assert Job.objects.filter(status="cancelled").count() == 5


def test_no_place_to_begin_is_no_error(superuser: Client) -> None:
    Job.objects.create(stage="clip")
    assert superuser.get(f"{CLIPS}&before=nowhere").status_code == 302


def test_events_by_type_are_looked_for_among_the_newest(superuser: Client) -> None:
    for kind in ("reaper:failed(poison)", *["job:finished"] * 3):
        JobEvent.objects.create(job_id="1", data={"type": kind, "table": "jobs"})
    address = f"{list_of(JobEvent)}?type=reaper:failed(poison)"
    assert listed(superuser, address) == []
    before = further_back(superuser, address)
    assert before is not None
    assert len(listed(superuser, before)) == 1
