"""A job's page begins with why and what next; its attempts are bars; failed jobs are grouped."""

import re
from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

import jobreaper
from jobreaper.models import Worker
from project.media.models import Job
from tests.admin.conftest import claimed, execute, make_job
from tests.admin.pages import html, list_of, listed, page_of, text
from tests.explaining.test_running import lost

pytestmark = pytest.mark.django_db

JOBS = list_of(Job)


def part(page: str, name: str) -> str:
    [found] = re.findall(rf'(?s)<section class="module jr-{name}".*?</section>', page)
    return str(found)


def test_the_page_has_the_words_of_explain(superuser: Client) -> None:
    jobreaper.pause("clip", model=Job, by="ada", reason="disk full")
    job = make_job()
    found = jobreaper.explain(job)
    said = text(part(html(superuser, page_of(job)), "state"))
    assert found.headline in said
    assert found.reasons[0].remedy in said
    assert f"What happens next: {found.next}" in said


def test_attempts_are_bars_with_who_held_each(superuser: Client) -> None:
    Worker.objects.create(worker="one:1:a", kind="work", host="one", pid=1, version="0")
    lease = claimed("one:1:a")
    lease.fail("boom", "it broke")
    execute("UPDATE jobs SET next_earliest_run_at = now() WHERE id = %s", lease.pk)
    assert jobreaper.claim(Job, lease.pk, worker="two:1:a")
    attempts = part(html(superuser, page_of(lease.job)), "attempts")
    assert attempts.count('class="jr-attempt"') == 2
    said = text(attempts)
    assert "1 failed, to be tried again" in said
    assert "boom: it broke" in said
    assert "2 runs" in said
    assert "?q=one%3A1%3Aa" in attempts


def test_a_lost_attempt_shows_when_it_was_silent(superuser: Client) -> None:
    job = lost(120)
    jobreaper.reap([Job], hold=False)
    attempts = part(html(superuser, page_of(job)), "attempts")
    assert re.findall(r"jr-bar-(\w+)\" x", attempts) == ["good", "late", "none"]
    assert "ran 5 min 0 s, silent 5 min 0 s, lease over 2 min" in attempts
    assert "<title>silent 5 min 0 s</title>" in attempts
    assert "taken back" in text(attempts)


def test_a_running_attempt_that_is_late_shows_since_when_it_is_silent(superuser: Client) -> None:
    lease = claimed("w:1:a")
    assert "silent" not in part(html(superuser, page_of(lease.job)), "attempts")
    execute(
        "UPDATE jobs SET claimed_at = now() - interval '2 hours', "
        "last_heartbeat_at = now() - interval '1 hour', "
        "lease_expires_at = now() + interval '1 hour' WHERE id = %s",
        lease.pk,
    )
    attempts = part(html(superuser, page_of(lease.job)), "attempts")
    assert re.findall(r"jr-bar-(\w+)\" x", attempts) == ["good", "late"]
    assert re.search(r"\b1 silent .* silent for 1 h", text(attempts))


def test_the_timeline_says_how_long_a_lost_worker_had_been_silent(superuser: Client) -> None:
    job = lost(120)
    jobreaper.reap([Job], hold=False)
    said = text(part(html(superuser, page_of(job)), "timeline"))
    assert re.search(r"worker worker:1:a .*silent for \d+ min", said)


def test_bars_have_no_style_that_a_strict_policy_forbids(superuser: Client) -> None:
    page = html(superuser, page_of(lost()))
    assert not re.findall(r'\s(?:style|on\w+)="', part(page, "attempts") + part(page, "state"))


def test_what_can_be_edited_comes_last_and_folded(superuser: Client) -> None:
    page = html(superuser, page_of(make_job()))
    assert page.index("jr-timeline") < page.index("<details") < page.index('name="stage"')
    assert "<details open" not in page


def test_it_links_to_jobs_of_the_same_worker_stage_and_error(superuser: Client) -> None:
    running = unescape(html(superuser, page_of(claimed("w:1:a").job)))
    assert f"{JOBS}?worker=w%3A1%3Aa" in running
    assert f"{JOBS}?stage=clip" in running
    lease = claimed()
    lease.fail("boom", retry=False)
    assert f"{JOBS}?status=failed&error=boom" in unescape(html(superuser, page_of(lease.job)))


def test_a_viewer_sees_why_and_has_no_button(staff: Callable[..., Client]) -> None:
    page = html(staff("media.view_job"), page_of(lost()))
    assert "Its lease ran out" in page
    assert 'name="action"' not in page


class TestErrors:
    @pytest.fixture(autouse=True)
    def failed(self, db: None) -> None:
        for code, reason in [("boom", "one"), ("boom", "two"), ("bang", "three")]:
            claimed().fail(code, reason, retry=False)
        make_job()

    def test_failed_jobs_are_grouped_by_error(self, superuser: Client) -> None:
        page = html(superuser, f"{JOBS}?status=failed")
        said = text(part(page, "errors"))
        assert said.endswith("boom 2 two bang 1 three")
        assert "?status=failed&error=bang" in unescape(page)

    def test_a_group_leads_to_its_jobs(self, superuser: Client) -> None:
        assert len(listed(superuser, f"{JOBS}?status=failed&error=boom")) == 2
        assert len(listed(superuser, f"{JOBS}?status=failed&error=bang")) == 1
        assert listed(superuser, f"{JOBS}?status=failed&error=") == []

    def test_other_lists_have_no_groups(self, superuser: Client) -> None:
        assert "jr-errors" not in html(superuser, JOBS)
        assert "jr-errors" not in html(superuser, f"{JOBS}?status=failed&error=boom")
