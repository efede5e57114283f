"""Workers with leases too long to matter, each behind a network of its own, and what befalls
them.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from jobreaper.states import EventType, Status
from project.embedded import Postgres
from tests.processes.children import Child
from tests.proxy import Proxy
from tests.waiting import until

GRACE_SEC = 2.0
# A silence that would be a death if silence were one.
LONG_SEC = 2 * GRACE_SEC
NOTICED_SEC = 60

ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "tests.settings",
    "DEFAULT_LEASE_SEC": "300",
    "HEARTBEAT_SEC": "15",
    "PRESENCE_GRACE_SEC": str(GRACE_SEC),
    "RECOVERY_GRACE_SEC": "4",
    "REAPER_INTERVAL_SEC": "1",
    "JOB_RETRY_BACKOFF_MS_BASE": "1",
    "JOB_RETRY_BACKOFF_MS_MAX": "1",
}
WATCHERS = 2

CUT = """
SELECT count(pg_terminate_backend(pid)) AS cut
  FROM pg_stat_activity
 WHERE pid = ANY (ARRAY(
       SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
          AND (%s::text IS NULL OR application_name = %s)
        ORDER BY random() LIMIT %s))
"""


class Worker:
    """A worker in the middle of a job."""

    def __init__(self, name: str, child: Child, proxy: Proxy, job: int, epoch: int) -> None:
        self.name = name
        self.child = child
        self.proxy = proxy
        self.job = job
        self.epoch = epoch


class House:
    """Two that watch, and workers. What befalls them is a method each, and says in the end whether
    what was to happen has happened.
    """

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.server = server
        self._directory = directory
        self._started: list[Child] = []
        self._watchers: list[Child] = []
        self.workers: list[Worker] = []
        self.killed = 0
        self.harms: dict[str, Callable[[], object]] = {
            "worker killed": self._kill,
            "worker killed behind a network that drops everything": self._kill_out_of_sight,
            "worker frozen": self._freeze,
            "watcher killed, then a worker": self._kill_a_watcher,
            "watcher frozen, then a worker killed": self._freeze_a_watcher,
            "one session of a worker cut": lambda: self.cut(self._one().name, 1),
            "all sessions of a worker cut": lambda: self.cut(self._one().name),
            "all sessions cut": self.cut,
            "all connections reset": self.reset,
            "network slow": self._delay,
            "network drops everything": self._drop,
            "PostgreSQL restarted": self._restart,
        }

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run one statement on a connection of its own."""
        with psycopg.connect(self.server.url, autocommit=True, row_factory=dict_row) as client:
            cursor = client.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def at_work(self, workers: int) -> Iterator[None]:
        try:
            assert self._start("manage.py", "migrate", "--verbosity", "0").process.wait(60) == 0
            self._watchers = [self._watch() for _ in range(WATCHERS)]
            self.workers = [self._hire(self._new_job()) for _ in range(workers)]
            yield
        finally:
            for child in self._started:
                child.end()
            for worker in self.workers:
                worker.proxy.close()

    def stand(self, seconds: float = 0.0) -> None:
        """Watch for so long that no worker loses its job."""
        ends_at = time.monotonic() + seconds
        expected = {worker.job: (Status.PROCESSING, worker.epoch) for worker in self.workers}
        while True:
            rows = self.sql("SELECT id, status, lease_epoch FROM jobs")
            found = {row["id"]: (row["status"], row["lease_epoch"]) for row in rows}
            assert found == expected, self.sql("SELECT job_id, data FROM job_events ORDER BY id")
            if time.monotonic() >= ends_at:
                return
            time.sleep(0.1)

    def all_hold(self) -> None:
        """Each worker says itself that it holds its job; nothing was taken from one that lives."""
        self.stand()
        for worker in self.workers:
            assert worker.child.ask("check") == "held", worker.child.log
        lost = "SELECT id FROM job_events WHERE type = %s"
        assert len(self.sql(lost, EventType.JOB_WORKER_LOST)) == self.killed

    def cut(self, name: str | None = None, most: int | None = None) -> int:
        """End sessions of that name, of everybody by default; return how many."""
        return int(self.sql(CUT, name, name, most)[0]["cut"])

    def reset(self) -> None:
        """Reset every worker's connections at once."""
        for worker in self.workers:
            worker.proxy.reset()

    def _one(self) -> Worker:
        return random.choice(self.workers)

    def _start(self, *arguments: str, url: str = "") -> Child:
        child = Child(
            arguments,
            {**ENVIRONMENT, "DATABASE_URL": url or self.server.url},
            self._directory / f"{len(self._started)}.log",
        )
        self._started.append(child)
        return child

    def _watch(self) -> Child:
        return self._start("manage.py", "reap", "--loop")

    def _new_job(self) -> int:
        sql = "INSERT INTO jobs (stage, max_attempts) VALUES ('clip', 10000) RETURNING id"
        return int(self.sql(sql)[0]["id"])

    def _hire(self, job: int) -> Worker:
        """Start a worker, which takes the job; the server knows its sessions by its name."""
        name = f"worker {len(self._started)}"
        proxy = Proxy(make_conninfo(self.server.url, application_name=name))
        child = self._start("-m", "tests.processes.worker", url=proxy.url)
        assert child.answer() == "ready"
        until(lambda: child.ask("claim", job) == "claimed")
        until(lambda: self.sql("SELECT worker FROM jobreaper_workers WHERE pid = %s", child.pid))
        [row] = self.sql("SELECT lease_epoch FROM jobs WHERE id = %s", job)
        return Worker(name, child, proxy, job, row["lease_epoch"])

    def _is_taken_back(self, job: int) -> bool:
        [row] = self.sql("SELECT status FROM jobs WHERE id = %s", job)
        return bool(row["status"] == Status.QUEUED)

    def _replace(self, killed: Worker) -> None:
        until(lambda: self._is_taken_back(killed.job), NOTICED_SEC)
        self.killed += 1
        self.workers.append(self._hire(killed.job))

    def _kill(self) -> None:
        killed = self._one()
        self.workers.remove(killed)
        killed.child.end()
        self._replace(killed)
        killed.proxy.close()

    def _kill_out_of_sight(self) -> None:
        """As a host that loses its power: the server hears of it only later."""
        killed = self._one()
        killed.proxy.hang()
        killed.child.end()
        self.stand(LONG_SEC)
        self.workers.remove(killed)
        killed.proxy.close()
        self._replace(killed)

    def _freeze(self) -> None:
        worker = self._one()
        worker.child.freeze()
        self.stand(LONG_SEC)
        worker.child.thaw()

    def _kill_a_watcher(self) -> None:
        watcher = self._watchers.pop(random.randrange(WATCHERS))
        watcher.end()
        self._kill()
        self._watchers.append(self._watch())

    def _freeze_a_watcher(self) -> None:
        watcher = random.choice(self._watchers)
        watcher.freeze()
        self._kill()
        watcher.thaw()

    def _delay(self) -> None:
        for worker in self.workers:
            worker.proxy.delay(random.uniform(0.05, 0.4))
        self.stand(LONG_SEC)
        self._mend()

    def _drop(self) -> None:
        for worker in random.sample(self.workers, random.randint(1, len(self.workers))):
            worker.proxy.hang()
        self.stand(LONG_SEC)
        self._mend()

    def _mend(self) -> None:
        for worker in self.workers:
            worker.proxy.mend()

    def _restart(self) -> None:
        self.server.stop(random.choice(["fast", "immediate"]))
        time.sleep(random.uniform(0, LONG_SEC))
        self.server.start()
