"""The collector in processes of its own: what registers it, and what does without it."""

import os
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import REGISTRY

from jobreaper.metrics import prometheus
from tests.metrics.page import Page
from tests.rows import Rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]


REGISTERS = """
import django
django.setup()
from prometheus_client import REGISTRY
names = set(REGISTRY._names_to_collectors)
assert {"reaper_requeues_total", "jobreaper_up"} <= names, names
from django.db import connections
assert all(connections[alias].connection is None for alias in connections)
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_registration_asks_no_database() -> None:
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://x"}
    result = run(REGISTERS, **nowhere)
    assert result.returncode == 0, result.stderr


def test_the_collector_is_registered_once() -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        REGISTRY.register(prometheus.JobreaperCollector())


SCRAPES = """
import django
django.setup()
from django.test import RequestFactory
from jobreaper import reap
from jobreaper.metrics.prometheus import metrics
reap()
print(metrics(RequestFactory().get("/")).content.decode())
"""


def test_multi_process_mode_is_not_needed_and_writes_no_file(
    database_url: str, tmp_path: Any, jobs: Rows
) -> None:
    """notifications-api#3434: a file for each process filled the disk."""
    jobs.plant_expired(stage="clip")
    where = {"DATABASE_URL": database_url, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    result = run(SCRAPES, **where)
    assert result.returncode == 0, result.stderr
    assert Page(result.stdout).by("stage", of="reaper_requeues_total") == {"clip": 1}
    assert not list(tmp_path.iterdir())


WITHOUT = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
import django
from django.conf import settings
settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_prometheus"]
settings.ROOT_URLCONF = "jobreaper.nothing"
django.setup()
from jobreaper import claim, reap
from project.media.models import Job
with claim(Job, Job.objects.create().pk) as lease:
    lease.finish()
assert not reap().all_errors
assert "jobreaper.metrics.prometheus" not in sys.modules
assert "jobreaper.tracing" not in sys.modules
"""


def test_everything_works_without_prometheus_and_opentelemetry(database_url: str) -> None:
    result = run(WITHOUT, DATABASE_URL=database_url)
    assert result.returncode == 0, result.stderr
