"""Everything that runs while the chaos is on, and what can befall it."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from kombu import Connection
from psycopg.rows import dict_row

from project.embedded import Postgres
from tests.chaos.settings import LEASE_SEC
from tests.processes.children import Child

CHILDREN = 4
HAND_RUN = 2
QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "INFO")


def celery(*arguments: str) -> tuple[str, ...]:
    return ("-m", "celery", "-A", "project", *arguments)


WORKERS = ("worker 1", "worker 2")
BEATS = ("beat 1", "beat 2")
REAPERS = ("reaper 1", "reaper 2")
FLEET = "fleet"

PROCESSES = {
    **{
        name: (
            *celery("worker", "--concurrency", str(CHILDREN)),
            # A broker may serve other workers of this machine, and lets no two have one name.
            *("--hostname", f"chaos-{os.getpid()}-{name[-1]}@%h"),
            *QUIET,
        )
        for name in WORKERS
    },
    **{name: celery("beat", "--pidfile", "") for name in BEATS},
    **dict.fromkeys(REAPERS, ("manage.py", "reap", "--loop", "--batch-size", "3")),
    # Workers without Celery beside those with it, on the same table.
    FLEET: ("-m", "tests.processes.fleet", str(HAND_RUN), "short"),
}


class House:
    """The processes by name; one that ends is started anew, as a supervisor does.

    Each method that does harm returns whether it found somebody to do it to.
    """

    def __init__(
        self, postgres: Postgres, broker: str, may_be_flushed: bool, queue: str, directory: Path
    ) -> None:
        self.postgres = postgres
        self.broker = broker
        self.queue = queue
        self._directory = directory
        self._running: dict[str, Child] = {}
        self._started: list[Child] = []
        self._frozen: list[tuple[float, Sequence[psutil.Process]]] = []
        self.harms: dict[str, Callable[[], bool]] = {
            "child killed": self._kill_a_child,
            "hand-run worker killed": self._kill_a_hand_run_worker,
            "worker killed, its children live on": lambda: self._kill(WORKERS),
            "worker killed with its children": lambda: self._kill(WORKERS, whole=True),
            "worker told to stop": self._stop_a_worker,
            "worker frozen beyond the lease": self._freeze_a_worker,
            "child frozen beyond the lease": self._freeze_a_child,
            "beat killed": lambda: self._kill(BEATS),
            "reaper killed": lambda: self._kill(REAPERS),
            "queue purged": self._purge,
            "sessions of PostgreSQL ended": self._end_sessions,
            "PostgreSQL restarted": self._restart_postgres,
        }
        if may_be_flushed:
            self.harms["Redis flushed"] = self._flush_redis

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run one statement on a connection of its own."""
        with psycopg.connect(self.postgres.url, row_factory=dict_row) as client:
            cursor = client.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    @property
    def logs(self) -> Iterator[str]:
        """What each process has written to its log."""
        return (child.log for child in self._started)

    def run(self, name: str, arguments: Sequence[str]) -> Child:
        """Start a Python process in the settings of the chaos."""
        child = Child(
            arguments,
            {
                "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
                "DATABASE_URL": self.postgres.url,
                "CELERY_BROKER_URL": self.broker,
                # Not used, and so not to be started.
                "REDIS_URL": self.broker,
                "CHAOS_QUEUE": self.queue,
            },
            self._directory / f"{len(self._started)} {name}.log",
        )
        self._started.append(child)
        return child

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Start every process; none is left at the end."""
        try:
            self.keep_up()
            yield
        finally:
            for child in self._started:
                child.end()
            with self._channel() as channel:
                channel.queue_delete(self.queue)

    def keep_up(self) -> None:
        """Start what does not run, and let go on what has been frozen for long enough."""
        for name, arguments in PROCESSES.items():
            child = self._running.get(name)
            code = child.process.poll() if child else 0
            if code is None:
                continue
            assert code <= 0, f"{name} ended by itself:\n{child and child.log}"
            self._running[name] = self.run(name, arguments)
        now = time.monotonic()
        for until_then, frozen in self._frozen:
            for process in frozen if until_then <= now else ():
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        self._frozen = [(when, who) for when, who in self._frozen if when > now]

    def _children(self, *names: str) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for name in names:
            with suppress(psutil.NoSuchProcess):
                found += psutil.Process(self._running[name].pid).children()
        return found

    def _at_work(self) -> set[int]:
        """Return the processes that hold a lease."""
        rows = self.sql(
            "SELECT split_part(locked_by, ':', 2)::int AS pid FROM jobs WHERE status = 'processing'"
        )
        return {row["pid"] for row in rows}

    def _one_at_work(self, *names: str) -> psutil.Process | None:
        """Return a child of these processes that holds a lease and is not frozen."""
        holders = self._at_work() - {p.pid for _, frozen in self._frozen for p in frozen}
        found = [child for child in self._children(*names) if child.pid in holders]
        return random.choice(found) if found else None

    def _kill_one_at_work(self, *names: str) -> bool:
        child = self._one_at_work(*names)
        if child is None:
            return False
        with suppress(psutil.NoSuchProcess):
            child.kill()
            return True
        return False

    def _kill_a_child(self) -> bool:
        return self._kill_one_at_work(*WORKERS)

    def _kill_a_hand_run_worker(self) -> bool:
        return self._kill_one_at_work(FLEET)

    def _kill(self, names: tuple[str, ...], whole: bool = False) -> bool:
        child = self._running[random.choice(names)]
        child.end() if whole else child.kill()
        return True

    def _stop_a_worker(self) -> bool:
        """As a deploy does: the next one starts while this one lets its jobs end."""
        self._running.pop(random.choice(WORKERS)).process.terminate()
        return True

    def _freeze(self, *processes: psutil.Process) -> bool:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        until_then = time.monotonic() + random.uniform(2, 3) * LEASE_SEC
        self._frozen.append((until_then, processes))
        return bool(processes)

    def _freeze_a_child(self) -> bool:
        child = self._one_at_work(*WORKERS, FLEET)
        # It may have ended its job meanwhile; then there is nothing stale to come.
        return child is not None and self._freeze(child) and child.pid in self._at_work()

    def _freeze_a_worker(self) -> bool:
        name = random.choice(WORKERS)
        return self._freeze(psutil.Process(self._running[name].pid), *self._children(name))

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with Connection(self.broker) as connection:
            yield connection.default_channel

    def _purge(self) -> bool:
        with self._channel() as channel:
            channel.queue_purge(self.queue)
        return True

    def _flush_redis(self) -> bool:
        with self._channel() as channel:
            channel.client.flushall()
        return True

    def _end_sessions(self) -> bool:
        ended = self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
        )
        return bool(ended)

    def _restart_postgres(self) -> bool:
        self.postgres.stop(random.choice(["fast", "immediate"]))
        self.postgres.start()
        return True
