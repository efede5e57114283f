"""The Reaper page: what it shows, to whom, and what its buttons do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

import jobreaper
from jobreaper.models import Job as QueueJob
from jobreaper.models import Pause, ReaperPass, RefusedRow, Schedule, Worker
from jobreaper.states import Trigger
from project.media.models import Job
from tests.admin.conftest import claimed, job_of, make_job
from tests.admin.pages import html, messages, text
from tests.explaining.test_running import lost

pytestmark = pytest.mark.django_db

Staff = Callable[..., Client]

PAGE = reverse("admin:jobreaper_reaper_changelist")
PARTS = reverse("admin:jobreaper_reaper_parts")
ACTS = ("dry-run", "reap", "pause", "resume", "pause-schedule", "resume-schedule")


def act(client: Client, name: str, **data: str) -> Any:
    return client.post(reverse(f"admin:jobreaper_reaper_{name}"), data, follow=True)


def part(page: str, name: str) -> str:
    """What one part of the page says."""
    [found] = re.findall(rf'(?s)<section[^>]* id="jr-part-{name}".*?</section>', page)
    return text(found)


@pytest.fixture
def viewer(staff: Staff) -> Client:
    """Somebody who may see everything and change nothing."""
    return staff(
        "jobreaper.view_reaper",
        "jobreaper.view_job",
        "jobreaper.view_worker",
        "jobreaper.view_pause",
        "jobreaper.view_refusedrow",
        "jobreaper.view_schedule",
        "media.view_job",
    )


class TestShown:
    def test_the_index_leads_to_it(self, superuser: Client) -> None:
        assert f'href="{PAGE}"' in html(superuser, reverse("admin:index"))

    def test_no_two_entries_of_the_index_have_one_name(self, superuser: Client) -> None:
        index = html(superuser, reverse("admin:index"))
        names = re.findall(r'<th scope="row" id="[^"]*">\s*<a [^>]*>([^<]*)</a>', index)
        assert len(names) > 8
        assert len(names) == len(set(names))

    def test_with_nothing_stuck_it_says_so(self, superuser: Client) -> None:
        claimed()
        jobreaper.reap([Job])
        said = part(html(superuser, PAGE), "headline")
        assert said.startswith("Nothing is stuck. The last pass was")

    def test_stuck_jobs_are_there_with_why_and_what_next(self, superuser: Client) -> None:
        job = lost(3600)
        page = html(superuser, PAGE)
        assert "1 running job has lost its lease, the oldest for 1 h" in part(page, "headline")
        assert "No pass of the reaper has ever run" in part(page, "headline")
        said = part(page, "stuck")
        assert "Its lease ran out 1 h" in said
        assert "As soon as a pass runs: it goes back to the queue" in said
        assert reverse("admin:media_job_change", args=[job.pk]) in page

    def test_every_table_is_there_with_its_counts(self, superuser: Client) -> None:
        make_job()
        claimed().fail("boom", retry=False)
        said = part(html(superuser, PAGE), "tables")
        assert "jobs 1 0 0 0 0 0 1 0" in said
        assert "executor_jobs" in said

    def test_workers_refused_rows_and_schedules_are_there(self, superuser: Client) -> None:
        Worker.objects.create(worker="web:1:a", kind="work", host="web", pid=1, version="0")
        claimed("web:1:a")
        RefusedRow.objects.create(
            table="jobs", verb="reap", key="17", error="so it is", next_try_at=now()
        )
        Schedule.objects.create(name="nightly", definition={})
        page = html(superuser, PAGE)
        assert "jobs: 1" in part(page, "workers")
        assert "so it is" in part(page, "refused")
        assert "nightly" in part(page, "schedules")

    def test_charts_have_their_numbers(self, superuser: Client) -> None:
        claimed().finish()
        ReaperPass.objects.create(reaper="r")
        said = part(html(superuser, PAGE), "charts")
        assert "Attempts that ended finished 1" in said
        assert "Passes complete 1" in said

    def test_nothing_is_in_line_that_a_strict_policy_forbids(self, superuser: Client) -> None:
        lost()
        claimed().finish()
        for address in (PAGE, PARTS):
            page = html(superuser, address)
            assert not re.findall(r'\s(?:style|on\w+)="', page)
            assert not re.findall(r"<style\b", page)
            inline = [tag for tag in re.findall(r"<script\b[^>]*>", page) if "src=" not in tag]
            assert all('type="application/json"' in tag for tag in inline)

    def test_the_parts_are_the_same_as_in_the_page(self, superuser: Client) -> None:
        lost()
        response = superuser.get(PARTS)
        assert response.headers["X-Jobreaper"] == "parts"
        assert "no-store" in response.headers["Cache-Control"]
        names = re.findall(r'id="jr-part-\w+"', response.content.decode())
        assert names == re.findall(r'id="jr-part-\w+"', html(superuser, PAGE))

    def test_more_jobs_need_no_more_queries(self, superuser: Client) -> None:
        html(superuser, PAGE)
        lost()
        with CaptureQueriesContext(connection) as few:
            html(superuser, PAGE)
        for _ in range(5):
            lost()
        with CaptureQueriesContext(connection) as many:
            html(superuser, PAGE)
        assert len(many) == len(few)


class TestPermissions:
    def test_it_needs_its_own_permission(self, staff: Staff) -> None:
        client = staff("jobreaper.view_reaperpass")
        assert client.get(PAGE).status_code == 403
        assert client.get(PARTS).status_code == 403
        assert PAGE not in html(client, reverse("admin:index"))

    def test_strangers_are_asked_to_sign_in(self, client: Client, db: None) -> None:
        assert client.get(PARTS).status_code == 302

    def test_one_sees_what_one_may_see_elsewhere(self, staff: Staff) -> None:
        lost()
        Worker.objects.create(worker="web:1:a", kind="work", host="web", pid=1, version="0")
        page = html(staff("jobreaper.view_reaper"), PAGE)
        assert "web:1:a" not in page
        assert "Its lease ran out" not in page

    def test_a_viewer_has_no_button(self, viewer: Client) -> None:
        jobreaper.pause("clip", model=Job)
        QueueJob.objects.create(type="mail")
        Schedule.objects.create(name="nightly", definition={})
        page = html(viewer, PAGE)
        assert "nightly" in page
        assert "<button form=" not in page

    @pytest.mark.parametrize("name", ACTS)
    def test_a_viewer_can_do_nothing(self, name: str, viewer: Client) -> None:
        Schedule.objects.create(name="nightly", definition={})
        job = lost()
        jobreaper.pause("clip", model=Job)
        target = "nightly" if "schedule" in name else "jobs:clip"
        assert act(viewer, name, target=target).status_code == 403
        assert Pause.objects.count() == 1
        assert Schedule.objects.get().paused_at is None
        assert Job.objects.get(pk=job.pk).status == "processing"

    @pytest.mark.parametrize("name", ACTS)
    def test_a_link_does_nothing(self, name: str, superuser: Client) -> None:
        assert superuser.get(reverse(f"admin:jobreaper_reaper_{name}")).status_code == 405

    @pytest.mark.parametrize("name", ACTS)
    def test_another_site_can_do_nothing(self, name: str, superuser: Client) -> None:
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = superuser.cookies
        assert strict.post(reverse(f"admin:jobreaper_reaper_{name}")).status_code == 403


class TestButtons:
    def test_a_dry_run_says_what_would_be_done(self, staff: Staff) -> None:
        job = lost()
        client = staff("jobreaper.view_reaper", "jobreaper.run_reaper")
        said = messages(act(client, "dry-run"))
        assert said == f"jobs: 1 job would be requeued ({job.pk})"
        assert Job.objects.get(pk=job.pk).status == "processing"
        assert not ReaperPass.objects.exists()

    def test_reap_now_runs_a_pass_and_says_what_it_did(self, staff: Staff) -> None:
        again, over = lost(), lost(max_attempts=1)
        client = staff("jobreaper.view_reaper", "jobreaper.run_reaper")
        said = messages(act(client, "reap"))
        assert f"jobs: 1 job was requeued ({again.pk})" in said
        assert f"jobs: 1 job failed ({over.pk})" in said
        assert Job.objects.get(pk=again.pk).status == "queued"
        assert ReaperPass.objects.get().trigger == Trigger.ADMIN

    def test_with_nothing_to_reap_it_says_so(self, superuser: Client) -> None:
        lease = claimed()
        assert messages(act(superuser, "dry-run")) == "A pass would find nothing to reap."
        assert messages(act(superuser, "reap")) == "Nothing to reap."
        assert job_of(lease).status == "processing"

    def test_a_stage_is_paused_and_resumed(self, superuser: Client) -> None:
        make_job()
        assert 'value="jobs:clip"' in html(superuser, PAGE)
        assert messages(act(superuser, "pause", target="jobs:clip")) == "clip of jobs is paused."
        assert Pause.objects.get().by == "ada"
        assert "paused" in part(html(superuser, PAGE), "queues")
        act(superuser, "resume", target="jobs:clip")
        assert not Pause.objects.exists()

    def test_a_schedule_is_paused_and_resumed(self, superuser: Client) -> None:
        Schedule.objects.create(name="nightly", definition={})
        act(superuser, "pause-schedule", target="nightly")
        assert Schedule.objects.get().paused_by == "ada"
        act(superuser, "resume-schedule", target="nightly")
        assert Schedule.objects.get().paused_at is None

    @pytest.mark.parametrize(
        ("name", "target"),
        [("pause", "no such table:x"), ("pause-schedule", "x"), ("pause", "jobs:")],
    )
    def test_what_is_not_there_is_an_error_in_words(
        self, name: str, target: str, superuser: Client
    ) -> None:
        response = act(superuser, name, target=target)
        assert response.status_code == 200
        assert messages(response)


def test_a_table_that_cannot_be_read_is_said_to_be_so(superuser: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE executor_jobs RENAME COLUMN locked_at TO elsewhere")
    page = html(superuser, PAGE)
    assert "executor_jobs cannot be read" in part(page, "headline")
    assert "error" in part(page, "tables")
    assert "jobs 0" in part(page, "tables")
