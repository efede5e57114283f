"""`manage.py work` as a process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.children import Child
from tests.rows import Sql

Start = Callable[..., Child]

# A Python process that starts, or ends, on a machine that is busy with other things.
PATIENCE_SEC = 60.0


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start `manage.py work` on the test database; all are gone when the test ends."""
    children: list[Child] = []

    def start(
        *options: str,
        lease_sec: float = 2,
        max_runtime_sec: float | None = None,
        stall_after_sec: float | None = None,
        program: tuple[str, ...] = ("manage.py",),
        settings: str = "tests.queue.settings",
    ) -> Child:
        environment = {
            "DJANGO_SETTINGS_MODULE": settings,
            "DATABASE_URL": database_url,
            "DEFAULT_LEASE_SEC": str(lease_sec),
            "HEARTBEAT_SEC": "0.4",
        }
        if max_runtime_sec is not None:
            environment["MAX_RUNTIME_SEC"] = str(max_runtime_sec)
        if stall_after_sec is not None:
            environment["STALL_AFTER_SEC"] = str(stall_after_sec)
        log = tmp_path / f"work-{len(children)}.log"
        child = Child([*program, "work", *options], environment, log)
        children.append(child)
        return child

    yield start
    for child in children:
        child.end()


@pytest.fixture
def ledger(sql: Sql) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The effects of all jobs so far."""
    sql("CREATE TABLE ledger (job_id text, epoch bigint)")
    yield lambda: sql("SELECT job_id, count(*) FROM ledger GROUP BY 1")
    sql("DROP TABLE ledger")
