"""What will happen to a switched project in production: a worker of it is killed in a task."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any
from urllib.parse import urlencode

from django.db import connection

from tests.waiting import until

PATIENCE_SEC = 120.0
QUICKLY = {
    "DEFAULT_LEASE_SEC": "6",
    "HEARTBEAT_SEC": "1",
    "REAPER_INTERVAL_SEC": "1",
    "JOB_RETRY_BACKOFF_MS_BASE": "1",
}
KEYS = ("dbname", "user", "password", "host", "port")


@contextmanager
def worker(settings: str, **environment: str) -> Iterator["Popen[bytes]"]:
    """`manage.py work` of a project, on the test database."""
    params = {
        key: value for key, value in connection.get_connection_params().items() if key in KEYS
    }
    process = Popen(
        [sys.executable, "-m", "django", "work"],
        env={
            **os.environ,
            **QUICKLY,
            **environment,
            "DATABASE_URL": f"postgresql:///?{urlencode(params)}",
            "DJANGO_SETTINGS_MODULE": settings,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_and_kill(task: Any, row: Any, settings: str) -> Any:
    """Have a worker killed while it runs `task` for `row`, which says that it is being printed, and
    return the task's result after another worker has run it.
    """
    result = task.enqueue(row.pk)

    def is_printing() -> bool:
        row.refresh_from_db()
        return bool(row.state == "printing")

    with worker(settings, PRINTER_SEC="600") as first:
        until(is_printing, PATIENCE_SEC, every_sec=0.1)
        first.kill()

    def has_ended() -> bool:
        result.refresh()
        return bool(result.is_finished)

    with worker(settings, PRINTER_SEC="0") as second:
        until(has_ended, PATIENCE_SEC, every_sec=0.1)
        second.terminate()
        assert second.wait(PATIENCE_SEC) == 0
    return result
