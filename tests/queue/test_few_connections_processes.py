"""Three workers whose role may connect too few times for all of them."""

from pathlib import Path

import pytest

from jobreaper import enqueue_many, reap
from jobreaper.models import Job
from tests.limited_role import ROLE, limited_role
from tests.processes.children import Child
from tests.queue.processes import PATIENCE_SEC
from tests.rows import Rows, Sql
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

LEASE_SEC = 2
# With 7 seconds of work, a lease that nothing renews would run out three times.
WORK_SEC = 7


def test_no_healthy_job_is_reaped_where_connections_are_short(
    sql: Sql, jobs: Rows, database_url: str, tmp_path: Path
) -> None:
    enqueue_many([{}] * 3, type="until-told")
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
        "DATABASE_URL": f"{database_url}&user={ROLE}",
        "DEFAULT_LEASE_SEC": str(LEASE_SEC),
        "HEARTBEAT_SEC": "0.4",
    }
    with limited_role(sql) as limit:
        limit(6)
        workers = [Child(["manage.py", "work"], environment, tmp_path / str(n)) for n in range(3)]
        try:
            until(lambda: any(row["claimed_at"] for row in jobs.all().values()), PATIENCE_SEC)
            began = jobs.now()
            until(
                lambda: (reap([Job]), (jobs.now() - began).total_seconds() > WORK_SEC)[1],
                every_sec=0.2,
            )
            attempts = [row["attempt_count"] for row in jobs.all().values()]
            assert max(attempts) == 1, attempts
            assert sql("SELECT data FROM job_events WHERE type LIKE 'reaper:%%'") == []
            assert "too many connections" in "".join(worker.log for worker in workers)
            for worker in workers:
                for _ in attempts:
                    worker.say("go on")
            until(
                lambda: {row["status"] for row in jobs.all().values()} == {"success"},
                PATIENCE_SEC,
            )
            assert [row["attempt_count"] for row in jobs.all().values()] == [1, 1, 1]
        finally:
            for worker in workers:
                worker.end()
