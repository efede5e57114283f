"""Keys of any characters: every link, form and redirect of the admin leads to the job it names."""

import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import models
from django.test import Client
from pytest_django import Settings

from jobreaper import control
from jobreaper.admin import timeline
from jobreaper.models import JobEvent
from tests.admin.own import own_jobs
from tests.admin.pages import html, messages
from tests.keys import KINDS

pytestmark = pytest.mark.django_db

LIST = "/admin/documents/errand/"
EVENTS = "/admin/jobreaper/jobevent/"
KEYS = [
    "clip_2024",
    "clip_5F2024",
    "a/b",
    "what?now#then",
    "100%",
    "%41",
    "it's",
    'say "no"',
    "<b>&amp;",
    "two words",
    " edges ",
    "a+b&c=d",
    "träum/größe",
    "名前",
    "back\\slash",
    "🦄;x:y@z$,[]",
    "..",
    "add",
]


@pytest.fixture
def errands(db: None) -> Iterator[Any]:
    """A job table whose keys are text."""
    with own_jobs(code=models.CharField(primary_key=True, max_length=200)) as model:
        yield model


def job_pages(page: str) -> list[str]:
    """Where a page's links to pages of jobs lead."""
    return [unescape(link) for link in re.findall(rf'href="({LIST}[^"]+/change/[^"]*)"', page)]


def form_of(page: str, action: str) -> dict[str, str]:
    """What the form with this button sends."""
    for form in re.findall(r"(?s)<form.*?</form>", page):
        if f'value="{action}"' in form:
            hidden = re.findall(r'(?s)<input type="hidden" name="(\w+)" value="(.*?)">', form)
            sent = {name: unescape(value) for name, value in hidden}
            return {**sent, "action": action}
    raise AssertionError(f"no button {action}")


@pytest.mark.slow
def test_every_link_form_and_redirect_keeps_the_key(superuser: Client, errands: Any) -> None:
    decoy = errands.objects.create(pk="decoy")
    for key in KEYS:
        errands.objects.create(pk=key)
        [link] = [link for link in job_pages(html(superuser, LIST)) if "decoy" not in link]
        page = html(superuser, link)
        asked = superuser.post(LIST, form_of(page, "cancel_jobs")).content.decode()
        done = superuser.post(LIST, {**form_of(asked, "cancel_jobs"), "reason": "why"}, follow=True)
        assert messages(done) == "1 errand was cancelled.", key
        assert done.redirect_chain == [(link, 302)]
        assert done.context["original"].pk == key
        assert errands.objects.get(pk=key).status == "cancelled"
        assert errands.objects.get(pk=decoy.pk).status == "queued"
        entry = LogEntry.objects.latest("pk")
        assert entry.object_id == key
        assert superuser.get(str(entry.get_admin_url()), follow=True).context["original"].pk == key
        for other in ("history", "delete"):
            assert html(superuser, link.replace("/change/", f"/{other}/"))
        superuser.post(link.replace("/change/", "/delete/"), {"post": "yes"})
        assert [job.pk for job in errands.objects.all()] == ["decoy"]


@pytest.mark.slow
def test_the_actions_and_the_search_of_the_list_keep_it(superuser: Client, errands: Any) -> None:
    errands.objects.bulk_create([errands(pk=key) for key in KEYS])
    for key in KEYS:
        assert [row.pk for row in searched(superuser, LIST, key)] == [key]
        chosen = {"_selected_action": key, "action": "fail_jobs"}
        asked = superuser.post(LIST, chosen).content.decode()
        superuser.post(LIST, {**form_of(asked, "fail_jobs"), "reason": ""})
        assert [job.pk for job in errands.objects.filter(status="failed")] == [key]
        errands.objects.filter(pk=key).delete()


def test_events_lead_to_the_job_and_the_job_to_its_events(
    superuser: Client, errands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHOWN_EVENTS", 2)
    errands.objects.bulk_create([errands(pk=key) for key in KEYS])
    for key in KEYS:
        JobEvent.objects.all().delete()
        data = [{"type": f"custom:{n}", "table": "errands"} for n in range(3)]
        JobEvent.objects.bulk_create([JobEvent(job_id=key, data=each) for each in data])
        [link] = set(job_pages(html(superuser, EVENTS)))
        JobEvent.objects.create(job_id="decoy", data={"table": "errands"})
        page = html(superuser, link)
        assert page.count('<pre class="jr-raw">') == 2, key
        [events] = re.findall(r'<a href="([^"]*)">All events of this job', page)
        assert superuser.get(unescape(events)).context["cl"].result_count == 3, key


def searched(client: Client, address: str, term: str) -> Any:
    return client.get(address, {"q": term}).context["cl"].result_list


def test_a_button_leads_back_to_a_page_that_leads_back_to_the_filtered_list(
    superuser: Client, errands: Any
) -> None:
    errands.objects.create(pk="a_b", stage="x&y")
    [link] = job_pages(html(superuser, f"{LIST}?stage=x%26y"))
    asked = superuser.post(LIST, form_of(html(superuser, link), "cancel_jobs")).content.decode()
    done = superuser.post(LIST, form_of(asked, "cancel_jobs"), follow=True)
    assert done.redirect_chain == [(link, 302)]
    assert link.endswith("?_changelist_filters=stage%3Dx%2526y")


def test_the_key_in_a_form_is_not_written_as_numbers_are_where_the_reader_lives(
    superuser: Client, settings: Settings
) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    with own_jobs() as errands:
        errands.objects.create(pk=1234567)
        [link] = job_pages(html(superuser, LIST))
        asked = superuser.post(LIST, form_of(html(superuser, link), "fail_jobs")).content.decode()
        superuser.post(LIST, form_of(asked, "fail_jobs"))
        assert errands.objects.get().status == "failed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_python_has_otherwise_than_the_database_is_found_both_ways(
    superuser: Client, kind: str
) -> None:
    field, key, text = KINDS[kind]
    with own_jobs(number=field(primary_key=True)) as errands:
        errands.objects.create(pk=key)
        [link] = job_pages(html(superuser, LIST))
        asked = superuser.post(LIST, form_of(html(superuser, link), "fail_jobs")).content.decode()
        done = superuser.post(LIST, form_of(asked, "fail_jobs"), follow=True)
        assert messages(done) == "1 errand was failed."
        assert "An operator failed the job" in done.content.decode()
        assert LogEntry.objects.get().object_id == str(key)
        page = html(superuser, EVENTS)
        assert job_pages(page) == [link]
        assert str(key) in page
        for term in (str(key), text):
            assert [event.job_id for event in searched(superuser, EVENTS, term)] == [text]
        assert [row.pk for row in searched(superuser, LIST, str(key))] == [key]
        assert list(searched(superuser, LIST, "none of them")) == []
        # Events outlive their job.
        errands.objects.all().delete()
        assert str(key) in html(superuser, EVENTS)


@pytest.mark.parametrize("key", [Decimal("1.50"), date(2026, 1, 2)])
def test_a_key_of_any_type_has_its_events(superuser: Client, key: Any) -> None:
    field: Any = (
        models.DecimalField(primary_key=True, max_digits=9, decimal_places=2)
        if isinstance(key, Decimal)
        else models.DateField(primary_key=True)
    )
    with own_jobs(key=field) as errands:
        errands.objects.create(pk=key)
        control.cancel(errands, [key], by="ada")
        [link] = set(job_pages(html(superuser, EVENTS)))
        assert "An operator cancelled the job" in html(superuser, link)
