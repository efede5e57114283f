"""Every view of ours behind every middleware that Django ships."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import getmembers, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client, override_settings
from django.urls import clear_url_caches, include, path
from django.utils import translation
from django_prometheus.exports import ExportToDjangoView

from jobreaper import enqueue, reap
from jobreaper.http.views import health, tick
from jobreaper.metrics.prometheus import metrics
from jobreaper.models import Job, JobEvent, Pause, ReaperPass
from project.urls import urlpatterns
from tests.docs import markdown
from tests.http.conftest import TOKEN
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")

# They need an app of their own with tables, and act where no view has answered.
OF_OTHER_APPS = ("flatpages", "redirects", "sites")


def _shipped() -> list[str]:
    """The middleware of this Django, found where Django keeps them."""
    home = Path(django.__path__[0])
    found = set()
    for file in (*home.glob("middleware/*.py"), *home.glob("contrib/*/middleware.py")):
        module = ".".join(["django", *file.relative_to(home).with_suffix("").parts])
        if not any(app in module for app in OF_OTHER_APPS):
            for name, member in getmembers(import_module(module), isclass):
                if name.endswith("Middleware") and member.__module__ == module:
                    found.add(f"{module}.{name}")
    return sorted(found)


SHIPPED = _shipped()


@pytest.fixture
def behind(jobs: Rows) -> Iterator[Callable[[str], Any]]:
    """Put a middleware behind those that the project has, with our page of metrics beside the
    rest; return the override.
    """
    urls: Any = ModuleType("urls_with_metrics")
    urls.urlpatterns = [*urlpatterns, path("own-metrics", metrics)]

    def put(middleware: str) -> Any:
        others = [middleware] if middleware not in settings.MIDDLEWARE else []
        return override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, *others], ROOT_URLCONF=urls)

    clear_url_caches()
    yield put
    clear_url_caches()


def test_they_are_found() -> None:
    assert "django.contrib.auth.middleware.LoginRequiredMiddleware" in SHIPPED
    assert "django.middleware.gzip.GZipMiddleware" in SHIPPED
    assert ("django.middleware.csp.ContentSecurityPolicyMiddleware" in SHIPPED) == (
        django.VERSION >= (6,)
    )
    assert len(SHIPPED) >= 18


@pytest.mark.parametrize("middleware", SHIPPED)
def test_tick_health_and_metrics_answer_those_who_are_not_signed_in(
    middleware: str, behind: Callable[[str], Any]
) -> None:
    client = Client(enforce_csrf_checks=True, headers={"accept-encoding": "gzip"})
    token = {"authorization": f"Bearer {TOKEN}"}
    with behind(middleware):
        assert client.get("/api/jobs/health").status_code == 503
        reap()
        answer = client.get("/api/jobs/health")
        # Neither a redirect to a login nor what a cache remembers.
        assert (answer.status_code, answer.json()["ok"]) == (200, True)
        assert client.head("/api/jobs/health").status_code == 200
        assert client.post("/api/jobs/tick").status_code == 401
        assert client.post("/api/jobs/tick", headers=token).json()["ok"] is True
        before, after = client.get("/own-metrics"), client.get("/own-metrics")
        assert (before.status_code, after.status_code) == (200, 200)
        assert before["Content-Type"].startswith("text/plain")


def test_the_page_says_how_django_prometheus_answers_behind_a_login(jobs: Rows) -> None:
    [code] = [
        text
        for _, text in markdown.blocks(markdown.page("metrics"), "python")
        if "login_not_required" in text
    ]
    behind_login = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    urls: Any = ModuleType("urls_of_the_page")
    urls.urlpatterns = [path("", include("django_prometheus.urls"))]
    with override_settings(MIDDLEWARE=behind_login, ROOT_URLCONF=urls):
        assert Client().get("/metrics").status_code == 302
        try:
            exec(code, urls.__dict__)  # noqa: S102
            clear_url_caches()
            answer = Client().get("/metrics")
        finally:
            del ExportToDjangoView.login_required
    assert answer.status_code == 200
    assert b"jobreaper_up" in answer.content


@pytest.mark.parametrize("middleware", SHIPPED)
def test_the_admin_shows_its_pages(middleware: str, behind: Callable[[str], Any]) -> None:
    user = get_user_model().objects.create_superuser("ann")
    job = enqueue("mail")
    pages = [f"/admin/jobreaper/{m._meta.model_name}/" for m in (Job, JobEvent, Pause, ReaperPass)]
    client = Client(enforce_csrf_checks=True)
    try:
        with behind(middleware):
            client.force_login(user)
            for page in [*pages, f"{pages[0]}{job.pk}/change/"]:
                assert client.get(page).status_code == 200, page
            page = client.get(f"{pages[0]}{job.pk}/change/").content.decode()
            [csrf] = {*re.findall(r'csrfmiddlewaretoken" value="(\w+)"', page)}
            sent = {
                "action": "cancel_jobs",
                "_selected_action": job.pk,
                "csrfmiddlewaretoken": csrf,
            }
            assert client.post(pages[0], {**sent}).status_code == 200
            assert client.post(pages[0], {**sent, "confirmed": "yes"}).status_code == 302
            assert Job.objects.get().status == "cancelled"
    finally:
        user.delete()


def test_the_admins_pages_obey_a_policy_that_allows_nothing_inline(jobs: Rows) -> None:
    """A Content-Security-Policy of ``default-src 'self'``, by whatever middleware it is sent."""
    user = get_user_model().objects.create_superuser("ann")
    client = Client()
    client.force_login(user)
    job = enqueue("mail")
    asked = {"action": "cancel_jobs", "_selected_action": job.pk}
    try:
        pages = [
            client.get("/admin/jobreaper/job/"),
            client.get(f"/admin/jobreaper/job/{job.pk}/change/"),
            client.post("/admin/jobreaper/job/", asked),
            client.get("/admin/jobreaper/jobevent/"),
        ]
    finally:
        user.delete()
    for page in pages:
        html = page.content.decode()
        assert not re.search(r'<style|<script(?![^>]*\bsrc=)|\sstyle="|\son\w+="', html)


OUR_PATHS = [r"^api/jobs/(health|tick)$", r"^own-metrics$"]
SET = {
    "slashes appended": {"APPEND_SLASH": True},
    "plain HTTP redirected": {
        "SECURE_SSL_REDIRECT": True,
        "SECURE_HSTS_SECONDS": 60,
        "SECURE_REDIRECT_EXEMPT": OUR_PATHS,
    },
    "another language": {"LANGUAGE_CODE": "de", "USE_I18N": True},
    "CSRF in the session": {"CSRF_USE_SESSIONS": True},
    "a strict policy": {"SECURE_CSP": {"default-src": ["'none'"]}},
    "requests in transactions": {"ATOMIC_REQUESTS": True},
    "conditional GET and cache": {"CACHE_MIDDLEWARE_SECONDS": 600},
}


@pytest.mark.parametrize("given", SET.values(), ids=SET)
def test_they_answer_under_what_the_middlewares_are_told_to_do(
    given: dict[str, Any], behind: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"authorization": f"Bearer {TOKEN}"}
    monkeypatch.setitem(
        connection.settings_dict, "ATOMIC_REQUESTS", given.get("ATOMIC_REQUESTS", False)
    )
    everything = [each for each in SHIPPED if each not in settings.MIDDLEWARE]
    with (
        behind(everything[0]),
        # LocaleMiddleware leaves the reader's language to whatever runs next in this thread.
        translation.override(None),
        override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, *everything], **given),
    ):
        client = Client(enforce_csrf_checks=True, headers={"accept-language": "fr"})
        reap()
        assert client.get("/api/jobs/health").json()["ok"] is True
        assert client.post("/api/jobs/tick", headers=token).json()["ok"] is True
        first, again = client.get("/own-metrics"), client.get("/own-metrics")
        assert (first.status_code, again.status_code) == (200, 200)
        assert "jobreaper_up" in again.content.decode()


@pytest.mark.parametrize("view", [tick, health, metrics])
def test_no_cache_keeps_an_answer(view: Any, cron: Client) -> None:
    urls: Any = ModuleType("urls_of_one")
    urls.urlpatterns = [path("view", view), path("", include(urlpatterns[0:1]))]
    with override_settings(ROOT_URLCONF=urls):
        answer = cron.post("/view") if view is tick else cron.get("/view")
    assert {"no-store", "private", "max-age=0"} <= {*re.split(r",\s*", answer["Cache-Control"])}
