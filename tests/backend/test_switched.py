"""Projects written for other backends, switched by their settings alone: their own tests pass, and
when a worker is killed, its task runs again.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.processes.children import ROOT

PATIENCE_SEC = 280.0

has_tasks = find_spec("django.tasks") is not None
# Not marked as `process`: those tests run with Django 5.2 only.
for_django_6 = pytest.mark.skipif(not has_tasks, reason="needs Django 6")
for_django_5 = pytest.mark.skipif(has_tasks, reason="needs Django 5.2")
as_written = pytest.mark.slow
with_its_backend = pytest.mark.skipif(
    not find_spec("django_tasks_db"), reason="needs django-tasks-db"
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("project", "settings", "modules"),
    [
        pytest.param("bookshop", "settings", ["tests"], marks=[for_django_6, as_written]),
        pytest.param("bookshop", "switched_tests", ["tests", "killed"], marks=for_django_6),
        pytest.param(
            "newsletter",
            "settings",
            ["tests"],
            marks=[for_django_5, with_its_backend, as_written],
        ),
        pytest.param(
            "newsletter",
            "switched_tests",
            ["tests", "killed"],
            marks=[for_django_5, pytest.mark.process],
        ),
    ],
)
def test_a_project_passes_its_tests(
    project: str, settings: str, modules: list[str], database_url: str
) -> None:
    place = f"tests.backend.{project}"
    labels = [f"{place}.{module}" for module in modules]
    done = subprocess.run(
        [sys.executable, "-m", "django", "test", "--noinput", *labels],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "DJANGO_SETTINGS_MODULE": f"{place}.{settings}",
        },
        text=True,
        capture_output=True,
        timeout=PATIENCE_SEC,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nOK" in done.stderr
