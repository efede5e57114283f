"""A real Chromium that looks at the admin, on a database with jobs in all states.

Debian's package ``chromium`` and Playwright are needed; without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client, override_settings
from pytest_django.live_server_helper import LiveServer

from project import lively

CHROMIUM = shutil.which("chromium")

# As strict as it gets: nothing inline, nothing from elsewhere.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
POLICY_OF_DJANGO_6 = {
    "default-src": ["'self'"],
    "object-src": ["'none'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
}

SIZES = {"wide": (1300, 900), "phone": (390, 844)}


def strict(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware that sends the policy, for a Django without one of its own."""

    def answer(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return answer


def middleware() -> str:
    """Django's own, where it is there."""
    if django.VERSION >= (6, 0):
        return "django.middleware.csp.ContentSecurityPolicyMiddleware"
    return "tests.browser.conftest.strict"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser. Its loop must be gone before other tests of this process have one."""
    if CHROMIUM is None:
        pytest.skip("chromium is not on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    # Playwright has an event loop in this thread, which Django takes for a coroutine's.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
        # Django takes the loop's connections for others than those outside of it, whose sessions
        # were ended with those of the server's threads.
        connections.close_all()
    connections.close_all()
    os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE")
    if before is not None:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@pytest.fixture
def server(settings: Any, transactional_db: None) -> Iterator[str]:
    """The admin on a lively database, under the strict policy."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware()]
    settings.SECURE_CSP = POLICY_OF_DJANGO_6
    with override_settings(DEBUG=False, ALLOWED_HOSTS=["*"]):
        running = LiveServer("127.0.0.1")
        try:
            yield str(running.url)
        finally:
            running.stop()
            # Those that its threads have left would keep the database.
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )


Open = Callable[..., Any]


@pytest.fixture
def open_page(chromium: Any, server: str) -> Iterator[Open]:
    """Sign somebody in with these permissions (none: a superuser), and open a page. What the
    browser complains of is an error at the end.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def run(
        address: str,
        *permissions: str,
        size: str = "wide",
        theme: str = "light",
        scripts: bool = True,
    ) -> Any:
        user, _ = User.objects.get_or_create(
            username="ada", is_staff=True, is_superuser=not permissions
        )
        for permission in permissions:
            label, codename = permission.split(".")
            found = Permission.objects.get(content_type__app_label=label, codename=codename)
            user.user_permissions.add(found)
        client = Client()
        client.force_login(user)
        width, height = SIZES[size]
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        cookie = client.cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": server}])
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: (
                complaints.append(f"{page.url} {said.location}: {said.text}")
                if _is_bad(said)
                else None
            ),
        )
        page.goto(server + address)
        return page

    yield run
    for context in contexts:
        context.close()
    assert complaints == []


def _is_bad(said: Any) -> bool:
    return said.type == "error" and "favicon" not in f"{said.text}{said.location}"


@pytest.fixture
def lively_database(server: str) -> None:
    """Jobs in all states."""
    lively.fill()
