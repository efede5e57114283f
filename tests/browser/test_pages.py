"""The pages in a real browser: what they do, in both themes, wide and narrow, without a complaint
of axe-core, and without anything that a strict Content Security Policy forbids.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

import jobreaper
from jobreaper.models import Job as QueueJob
from jobreaper.models import Pause, ReaperPass
from project.media.models import Job
from tests.browser.conftest import Open
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REAPER = reverse("admin:jobreaper_reaper_changelist")
JOBS = reverse("admin:jobreaper_job_changelist")
WORKERS = reverse("admin:jobreaper_worker_changelist")


def page_of(job: Any) -> str:
    label = job._meta.label_lower.replace(".", "_")
    return reverse(f"admin:{label}_change", args=[job.pk])


def violations(page: Any) -> list[str]:
    """What axe-core finds on a page, of what it is sure."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # The policy of the page forbids to add a script; the browser may evaluate one all the same.
    page.evaluate(axe.axe_script)
    found = page.evaluate(
        "axe.run({include: [['#content']]}, {resultTypes: ['violations'], preload: false,"
        " runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})"
    )
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        for node in each["nodes"]
        if "jr-" in node["html"] or "jr-" in str(node["target"])
    ]


def has_no_scroll_sideways(page: Any) -> bool:
    return bool(page.evaluate("document.body.scrollWidth <= window.innerWidth + 1"))


@pytest.mark.usefixtures("lively_database")
def test_every_page_can_be_read_by_everybody_at_any_width(open_page: Open) -> None:
    lost = QueueJob.objects.filter(status="processing", attempt_count=2)[0]
    failed = Job.objects.get(status="failed")
    addresses = [REAPER, page_of(lost), page_of(failed), f"{JOBS}?status=failed"]
    for size, theme in (("wide", "light"), ("wide", "dark"), ("phone", "light"), ("phone", "dark")):
        for address in addresses:
            page = open_page(address, size=size, theme=theme)
            assert violations(page) == [], (address, size, theme)
            assert has_no_scroll_sideways(page), (address, size)
            page.context.close()


@pytest.mark.usefixtures("lively_database")
def test_no_column_of_a_list_is_out_of_sight(open_page: Open) -> None:
    for size in ("wide", "phone"):
        for address in (JOBS, f"{JOBS}?status=failed", WORKERS):
            page = open_page(address, size=size)
            assert columns_out_of_sight(page) == [], (address, size)
            page.context.close()


@pytest.mark.usefixtures("lively_database")
def test_every_page_can_be_read_from_right_to_left(open_page: Open, settings: Any) -> None:
    settings.LANGUAGE_CODE = "ar"
    lost = QueueJob.objects.filter(status="processing", attempt_count=2)[0]
    for size in ("wide", "phone"):
        for address in (REAPER, page_of(lost)):
            page = open_page(address, size=size)
            assert page.locator("html").get_attribute("dir") == "rtl"
            assert violations(page) == [], (address, size)
            assert has_no_scroll_sideways(page), (address, size)
            # Time runs as the text does: what is drawn for later is on the left.
            drawn = page.locator(".jr-chart, .jr-attempt").first
            assert drawn.evaluate("each => new DOMMatrix(getComputedStyle(each).transform).a") == -1
            page.context.close()


def columns_out_of_sight(page: Any) -> list[str]:
    """The cells of a list's first line that end beyond the list, which scrolls sideways then."""
    found: list[str] = page.evaluate(
        "() => { const end = document.querySelector('.results').getBoundingClientRect().right + 1;"
        " return [...document.querySelectorAll('#result_list tbody tr:first-child > *')]"
        ".filter(cell => cell.getBoundingClientRect().right > end).map(cell => cell.className) }"
    )
    return found


def test_the_reaper_page_refreshes_itself_and_keeps_its_place(open_page: Open) -> None:
    page = open_page(REAPER)
    assert "Nothing is stuck" in page.inner_text("#jr-part-headline")
    assert "No pass of the reaper has ever run" in page.inner_text("#jr-part-headline")
    unfolded = page.locator("#jr-part-charts details").first
    unfolded.locator("summary").click()
    jobreaper.reap([Job])
    until(lambda: "The last pass was" in page.inner_text("#jr-part-headline"), 60)
    assert unfolded.get_attribute("open") is not None


def test_the_buttons_work_and_say_what_they_did(open_page: Open) -> None:
    job = QueueJob.objects.create(type="mail")
    page = open_page(REAPER)
    page.get_by_role("button", name="Dry run").click()
    assert "A pass would find nothing to reap." in page.inner_text(".messagelist")
    assert not ReaperPass.objects.exists()
    page.get_by_role("button", name="Reap now").click()
    assert "Nothing to reap." in page.inner_text(".messagelist")
    assert ReaperPass.objects.get().trigger == "admin"
    page.get_by_role("button", name="Pause mail").click()
    assert Pause.objects.get().name == job.stage
    page.get_by_role("button", name="Resume mail").click()
    until(lambda: not Pause.objects.exists())


def test_it_works_without_scripts(open_page: Open) -> None:
    page = open_page(REAPER, scripts=False)
    assert not page.locator("#jr-refreshing").is_visible()
    page.get_by_role("button", name="Reap now").click()
    assert "Nothing to reap." in page.inner_text(".messagelist")


def test_a_viewer_sees_the_page_and_no_button(open_page: Open) -> None:
    permissions = ("jobreaper.view_reaper", "jobreaper.view_job", "jobreaper.view_pause")
    job = QueueJob.objects.create(type="mail")
    page = open_page(REAPER, *permissions)
    assert "mail" in page.inner_text("#jr-part-queues")
    assert page.locator("#content button").count() == 0
    page.goto(page.url.replace(REAPER, page_of(job)))
    assert "What happens next" in page.inner_text(".jr-state")
    assert page.locator("#content button").count() == 0


def test_a_job_is_requeued_from_its_page(open_page: Open) -> None:
    job = QueueJob.objects.create(type="mail")
    jobreaper.fail(QueueJob, [job.pk], by="ann")
    page = open_page(page_of(job))
    page.get_by_role("button", name="Requeue").click()
    page.get_by_role("textbox").fill("the printer works again")
    page.get_by_role("button", name="Yes").click()
    assert "1 queue job was requeued." in page.inner_text(".messagelist")
    assert QueueJob.objects.get().status == "queued"
