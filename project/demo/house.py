"""Everything that the demo starts and has to stop: its database, its processes, its files."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psycopg
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections
from kombu.exceptions import OperationalError
from psycopg.sql import SQL, Identifier

from project import children
from project.celery import app
from project.demo import MEDIA_QUEUE, QUEUE

DATABASE: str = settings.DATABASES["default"]["NAME"]
CELERY = ["-m", "celery", "-A", "project"]
FAVOURITE_PORT = 8000
PATIENCE_AT_THE_END_SEC = 8


class Trouble(Exception):
    """The demo cannot continue; the message says why."""


@dataclass(frozen=True)
class Child:
    """A process of the demo, and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def last_words(self) -> str:
        """Return the end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def kill(self) -> None:
        """Kill it and everything that it started, as the end of a container does."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


class House:
    """A context manager that leaves nothing behind. After a failure, it keeps its files and its
    database, so that you can see what happened.
    """

    def __init__(self) -> None:
        self.files = Path(tempfile.mkdtemp(prefix="jobreaper-demo-"))
        self.children: list[Child] = []
        self.workers_so_far = 0
        self.keep = False

    def __enter__(self) -> "House":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A second Ctrl-C would leave things behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._end_children()
        connections.close_all()
        if self.children and (self.keep or isinstance(error, Exception)):
            print(f"Left for a look: {self.files} and {DATABASE}.", file=sys.stderr)
            return
        with suppress(psycopg.Error), psycopg.connect(settings.DATABASE_URL, autocommit=True) as db:
            db.execute(SQL("DROP DATABASE {}").format(Identifier(DATABASE)))
        with suppress(OperationalError), app.connection_for_write() as broker:
            for name in (QUEUE, MEDIA_QUEUE):
                queue = app.amqp.queues[name](broker.default_channel)
                queue.declare()  # Only a client that knows its bindings can delete them.
                queue.delete()
                queue.exchange.delete()
        shutil.rmtree(self.files)

    def make_database(self) -> None:
        """Create the demo's database from scratch, with an admin user."""
        try:
            with psycopg.connect(settings.DATABASE_URL, autocommit=True) as db:
                for statement in ("DROP DATABASE IF EXISTS {}", "CREATE DATABASE {}"):
                    db.execute(SQL(statement).format(Identifier(DATABASE)))
        except psycopg.Error as error:
            raise Trouble(
                f"{DATABASE}, the demo's own database, cannot be made anew: {str(error).strip()}"
            ) from None
        call_command("migrate", verbosity=0)
        get_user_model().objects.create_superuser("admin", password="admin")  # noqa: S106

    def start_worker(self) -> Child:
        """Start a worker process with a name that was not used before."""
        self.workers_so_far += 1
        return self._start_celery_worker(f"worker {self.workers_so_far}", MEDIA_QUEUE)

    def start_celery(self) -> None:
        """Start beat, which sends jobreaper's own tasks at their intervals, and a worker that runs
        them.
        """
        schedule = f"--schedule={self.files / 'beat-schedule'}"
        self.start("Celery beat", *CELERY, "beat", "-l", "INFO", "--pidfile=", schedule)
        self._start_celery_worker("Celery worker", QUEUE)

    def _start_celery_worker(self, name: str, queue: str) -> Child:
        # One process each, so that a kill ends a whole worker and not a child of one.
        alone = ["-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        host = f"--hostname={name.replace(' ', '-')}@%h"
        return self.start(name, *CELERY, "worker", "-l", "INFO", "-Q", queue, host, *alone)

    def start_web_server(self) -> tuple[str, int]:
        """Start Django's server on a free port and return its host and port."""
        host, port = _free_address()
        self.start("web server", "manage.py", "runserver", "--noreload", f"{host}:{port}")
        return host, port

    def start(self, name: str, *arguments: str) -> Child:
        """Start Python with `arguments`, in its own session: Ctrl-C reaches only the demo, which
        stops its children in order.
        """
        log = self.files / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = children.start(
                [sys.executable, *arguments],
                cwd=settings.BASE_DIR,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """Kill a child."""
        child.kill()
        self.children.remove(child)

    def take_ended(self) -> list[Child]:
        """Return the children that have ended by themselves since the last call."""
        ended = [child for child in self.children if child.process.poll() is not None]
        self.children = [child for child in self.children if child not in ended]
        return ended

    def _end_children(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)
                child.process.send_signal(signal.SIGCONT)  # One of them may be frozen.
        deadline = time.monotonic() + PATIENCE_AT_THE_END_SEC
        for child in self.children:
            try:
                child.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()


def _free_address() -> tuple[str, int]:
    for port in (FAVOURITE_PORT, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            host, port = server.getsockname()
            return host, port
    raise Trouble("There is no free port for the web server.")
