"""The backend as the default one, and a worker that runs its tasks."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.test import override_settings

from jobreaper.backend import running
from jobreaper.backend.compat import task_backends
from jobreaper.queue import unhandled
from tests.committed import foreign_client, sql, transactional_db
from tests.queue.processes import work

__all__ = ["foreign_client", "sql", "transactional_db", "work"]

BACKEND = "jobreaper.backend.JobreaperBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": []}}

# A task is checked by its backend when it is declared, with the settings of that moment.
with override_settings(TASKS=TASKS):
    import_module("tests.backend.tasks")
    import_module("tests.backend.elsewhere")


@pytest.fixture(autouse=True)
def backend(transactional_db: None) -> Iterator[Any]:
    """Tasks of any queue are jobs, and retries are due at once."""
    running.connect()
    unhandled._reported.clear()
    with override_settings(
        TASKS=TASKS,
        JOBREAPER={"JOB_RETRY_BACKOFF_MS_BASE": 1, "JOB_RETRY_BACKOFF_MS_MAX": 1},
    ):
        yield task_backends["default"]
