"""Runs Django's own tests of its task backends against the backends here.

    python -m tests.backend.djangos_suite ../django/tests/tasks

The folder is that of Django's source distribution, for the Django that is installed. Where a test
names a backend of Django's, it gets the one that takes its place here; a `SimpleTestCase` may use
the database. docs/django-tasks.md says what passes, and why the rest cannot. Needs DATABASE_URL.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from jobreaper.backend import JobreaperBackend
from project.database import database_from_url

HERE = "tests.backend.djangos_suite.Deferred"
EAGER = "jobreaper.testing.EagerBackend"

CHANGES = {
    r"django\.tasks\.backends\.dummy\.DummyBackend": HERE,
    r"django\.tasks\.backends\.immediate\.ImmediateBackend": EAGER,
    r"from django\.tasks\.backends\.dummy import DummyBackend": (
        "from tests.backend.djangos_suite import Deferred as DummyBackend"
    ),
    r"from django\.tasks\.backends\.immediate import ImmediateBackend": (
        "from jobreaper.testing import EagerBackend as ImmediateBackend"
    ),
    r"\A": "import asgiref.sync\n",
    r"import SimpleTestCase": "import TestCase",
    r"\(SimpleTestCase\)": "(TestCase)",
    r"available_apps = \[\]": 'available_apps = ["jobreaper"]',
}

# In a coroutine, what waits for the database is awaited.
COROUTINE = re.compile(r"^    async def .*?(?=^    \S|^\S|\Z)", re.MULTILINE | re.DOTALL)
IN_COROUTINES = {
    r"default_task_backend\.results": (
        'await asgiref.sync.sync_to_async(getattr)(default_task_backend, "results")'
    ),
    r"(?<!await )\b([\w.]+)\.get_result\(": r"await \1.aget_result(",
    r"(?<!await )\bresult\.refresh\(": "await result.arefresh(",
}


class Deferred(JobreaperBackend):
    """The backend, with what tests ask of `DummyBackend`: its results, and to forget them."""

    @property
    def results(self) -> list[Any]:
        jobs = self.model._base_manager.order_by("pk")
        return [self.get_result(str(job.pk)) for job in jobs]

    def clear(self) -> None:
        self.model._base_manager.all().delete()


def changed(text: str, changes: dict[str, str]) -> str:
    for written, wanted in changes.items():
        text = re.sub(written, wanted, text)
    return text


def main(source: Path) -> int:
    settings.configure(
        SECRET_KEY="for-tests",
        INSTALLED_APPS=["jobreaper"],
        DATABASES={"default": database_from_url(os.environ["DATABASE_URL"])},
        TASKS={"default": {"BACKEND": "jobreaper.backend.JobreaperBackend"}},
        USE_TZ=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "tasks"
        package.mkdir()
        for file in source.glob("*.py"):
            text = changed(file.read_text(), CHANGES)
            text = COROUTINE.sub(lambda match: changed(match[0], IN_COROUTINES), text)
            (package / file.name).write_text(text)
        sys.path.insert(0, folder)
        django.setup()
        from django.test.runner import DiscoverRunner

        runner = DiscoverRunner(interactive=False, verbosity=2, top_level=folder)
        return int(runner.run_tests([str(package)]))


if __name__ == "__main__":
    from tests.backend import djangos_suite

    sys.exit(djangos_suite.main(Path(sys.argv[1])))
