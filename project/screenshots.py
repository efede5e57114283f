"""Takes screenshots of the admin: ``python -m project.screenshots FOLDER [PAGE …]``. With
``--docs`` in the place of pages, it takes those of the documentation, under their names there.

It serves the admin on a database of its own, filled by ``project.lively``, and has Chromium (Debian
package ``chromium``) look at it, in both themes, wide and as narrow as a phone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

WIDE: Final = (1300, 900)
PHONE: Final = (390, 844)

# The pictures of the documentation, by page.
DOCS: Final = {"reaper": "reaper.png", "job": "admin-job.png", "jobs": "admin-jobs.png"}


def main(folder: Path, only: list[str]) -> None:
    """Take all of them, or only those of some pages."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    # Playwright has an event loop in this thread, and the database is the test's own.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    import django

    django.setup()
    from django.contrib.staticfiles.testing import StaticLiveServerTestCase
    from django.test.utils import get_runner, setup_test_environment

    from project import lively

    setup_test_environment()
    runner: Any = get_runner(django.conf.settings)(verbosity=0, interactive=False)
    old = runner.setup_databases()

    class Server(StaticLiveServerTestCase):
        databases = "__all__"

    Server.setUpClass()
    try:
        lively.fill()
        folder.mkdir(parents=True, exist_ok=True)
        _take(Server.live_server_url, folder, only)
    finally:
        Server.tearDownClass()
        _end_other_sessions()
        runner.teardown_databases(old)


def _end_other_sessions() -> None:
    """End those that the server's threads have left, which would keep the database."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _pages() -> Iterator[tuple[str, str]]:
    """Yield the names and the addresses of the pages."""
    from django.urls import reverse

    from jobreaper.models import Job
    from project.media.models import Job as MediaJob

    yield "index", reverse("admin:index")
    yield "reaper", reverse("admin:jobreaper_reaper_changelist")
    yield "jobs", reverse("admin:jobreaper_job_changelist")
    yield "errors", reverse("admin:jobreaper_job_changelist") + "?status=failed"
    lost = Job.objects.filter(status="processing", attempt_count=2)[0]
    yield "job", reverse("admin:jobreaper_job_change", args=[lost.pk])
    failed = MediaJob.objects.get(status="failed")
    yield "failed-job", reverse("admin:media_job_change", args=[failed.pk])


def _take(url: str, folder: Path, only: list[str]) -> None:
    from django.contrib.auth.models import User
    from django.test import Client
    from playwright.sync_api import sync_playwright

    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    cookie: Any = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, address in _pages():
            if only == ["--docs"]:
                _take_for_docs(browser, cookie, url + address, folder, name)
                continue
            if only and name not in only:
                continue
            for theme in ("light", "dark"):
                for size, (width, height) in (("wide", WIDE), ("phone", PHONE)):
                    context = browser.new_context(
                        viewport={"width": width, "height": height}, color_scheme=theme
                    )
                    context.add_cookies([cookie])
                    page = context.new_page()
                    page.goto(url + address)
                    page.screenshot(path=folder / f"{name}-{size}-{theme}.png", full_page=True)
                    context.close()
        browser.close()


def _take_for_docs(browser: Any, cookie: Any, url: str, folder: Path, name: str) -> None:
    if name in DOCS:
        context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
        context.add_cookies([cookie])
        page = context.new_page()
        page.goto(url)
        page.screenshot(path=folder / DOCS[name])
        context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
