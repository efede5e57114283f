"""Celery workers as processes of their own, and the jobs that a test gives them."""

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from psycopg.types.json import Jsonb

from tests.celery.brokers import Queue, celery_app
from tests.celery.files import begun
from tests.processes.children import Child
from tests.project.processes import has_ended
from tests.rows import Rows
from tests.waiting import until

START_SEC = 60

# The issue's own words: a killed job runs again in under five seconds.
AGAIN_SEC = 5

TASKS = {
    "deed": "do",
    "poison": "do_poison",
    "interruptible": "do_interruptible",
    "acks-late": "do_acks_late",
}
WORKER = (
    *("-A", "project", "worker", "--loglevel", "INFO"),
    *("--without-mingle", "--without-gossip", "--without-heartbeat"),
)


class Worker:
    """A Celery worker, the app whose messages it takes, and the files its jobs wait for."""

    def __init__(self, app: Celery, child: Child, home: Path) -> None:
        self.app = app
        self.child = child
        self.home = home
        self._said = ""

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.child.log

    @property
    def output(self) -> str:
        """What it has printed so far: its banner, and what its signals' handlers say."""
        self._said += "\n".join(self.child.lines_so_far())
        return self._said

    def send(self, jobs: Rows, deed: str, stage: str = "deed", **options: Any) -> int:
        """Make a job and send its message; ``options`` of the row start with ``max_``."""
        columns = {name: options.pop(name) for name in list(options) if name.startswith("max_")}
        key = int(jobs.plant(stage=stage, **columns))
        # Its file is a name of its own; and marked as sent, as a dispatcher would have it.
        payload = Jsonb({"deed": deed, "file": str(self.home / f"{key}.go")})
        jobs.sql("UPDATE jobs SET payload = %s, dispatched_at = now() WHERE id = %s", payload, key)
        self.nudge(key, stage, **options)
        return key

    def nudge(self, key: int, stage: str = "deed", **options: Any) -> Any:
        """Send one more message of a job."""
        return self.app.send_task(f"tests.celery.tasks.{TASKS[stage]}", args=(key,), **options)

    def let_go(self, key: int) -> None:
        """Let a waiting job come to its end."""
        (self.home / f"{key}.go").touch()

    def children(self) -> set[int]:
        """The processes of the pool."""
        return {child.pid for child in psutil.Process(self.child.pid).children()}


def pid_of(row: dict[str, Any]) -> int:
    """Return the process that holds a job's lease."""
    return int(row["locked_by"].split(":")[-2])


def running(jobs: Rows, key: int, attempt: int = 1) -> int:
    """Wait until the function of an attempt of the job runs; return the process that runs it."""

    def is_running() -> dict[str, Any] | None:
        row = jobs.row(key)
        if (row["status"], row["attempt_count"]) != ("processing", attempt):
            return None
        return row if begun(row["payload"], attempt).exists() else None

    return pid_of(until(is_running))


def await_status(jobs: Rows, key: int, status: str, timeout_sec: float = 20) -> dict[str, Any]:
    """Wait until the job is in this status; return its row."""
    try:
        until(lambda: jobs.row(key)["status"] == status, timeout_sec)
    except AssertionError as error:
        row = jobs.row(key)
        raise AssertionError(f"{error}: {row}, {jobs.events(key)}") from None
    return jobs.row(key)


def beats(jobs: Rows, key: int) -> None:
    """Wait for a heartbeat of the job."""
    before = jobs.row(key)["last_heartbeat_at"]
    until(lambda: jobs.row(key)["last_heartbeat_at"] > before)


@contextmanager
def celery_workers(database_url: str, broker: str) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts workers, which are at work when ``ready()`` says so. All are
    gone when the block ends.
    """
    with tempfile.TemporaryDirectory(prefix="leased-") as directory, ExitStack() as until_the_end:
        workers: list[Worker] = []

        def start(*arguments: str, **environment: str) -> Worker:
            queue = f"leased-{uuid.uuid4().hex}"
            # Each takes the place of the app before it, which comes back when this one ends.
            app = until_the_end.enter_context(celery_app(broker, queue=queue))
            until_the_end.callback(Queue(app).delete)
            home = Path(directory) / str(len(workers))
            home.mkdir()
            child = Child(
                ["-m", "celery", *WORKER, "--hostname", f"{queue}@%h", *arguments],
                {
                    "DATABASE_URL": database_url,
                    "DJANGO_SETTINGS_MODULE": "tests.celery.settings",
                    "CELERY_BROKER_URL": broker,
                    "LEASED_TASKS_QUEUE": queue,
                    **environment,
                },
                home / "worker.log",
            )
            until_the_end.callback(child.end)
            workers.append(Worker(app, child, home))
            return workers[-1]

        yield start


def ready(*workers: Worker) -> None:
    """Wait until the workers are at work."""
    for worker in workers:
        until(lambda worker=worker: _is_ready(worker), timeout_sec=START_SEC)  # type: ignore[misc]


def _is_ready(worker: Worker) -> bool:
    assert worker.child.process.poll() is None, worker.log
    return "ready." in worker.log


def exists(pid: int) -> bool:
    """Return whether the process runs; one that only waits to be buried does not."""
    try:
        return not has_ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
