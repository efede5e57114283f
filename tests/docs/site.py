"""A newcomer's project, made by following a page of the documentation."""

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings as host
from django.core.management import call_command
from kombu import Connection, Exchange, Queue
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from project import children
from project.database import database_from_url
from tests.docs import markdown
from tests.waiting import until

ENVIRONMENT = {**os.environ, "REAPER_INTERVAL_SEC": "1"}
del ENVIRONMENT["DJANGO_SETTINGS_MODULE"]
ENVIRONMENT.pop("PYTHONPATH", None)

COMMAND_SEC = 120
# Each look is a connection of its own.
LOOK_EVERY_SEC = 0.1

CELERY_APP = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""


class Site:
    """What `startproject` and `startapp` make, with a database and a Celery queue of its own.

    It runs this working copy, or what is installed beside the interpreter `python`.
    """

    def __init__(self, home: Path, app: str, python: Path | None = None) -> None:
        self.home = home
        self.python = str(python or sys.executable)
        self.environment = dict(ENVIRONMENT)
        if python is None:
            self.environment["PYTHONPATH"] = str(markdown.ROOT)
        self.name = f"docs_{uuid.uuid4().hex[:8]}"
        self.conninfo = make_conninfo(host.DATABASE_URL, dbname=self.name)
        self.log = home / "output.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        with psycopg.connect(host.DATABASE_URL, autocommit=True) as server:
            # template1 cannot be copied while anybody is connected to it.
            create = SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(self.name))
            server.execute(create)
        call_command("startproject", "mysite", home)
        (home / app).mkdir()
        call_command("startapp", app, home / app)
        database = database_from_url(host.DATABASE_URL) | {"NAME": self.name}
        self.add(
            "mysite/settings.py",
            f"DATABASES = {{'default': {database!r}}}\n"
            f"INSTALLED_APPS += [{app!r}]\n"
            f"CELERY_BROKER_URL = {host.CELERY_BROKER_URL!r}\n"
            f"CELERY_TASK_DEFAULT_QUEUE = {self.name!r}\n"
            "CELERY_WORKER_ENABLE_REMOTE_CONTROL = False\n",
        )
        self.add("mysite/celery.py", CELERY_APP)
        self.add("mysite/__init__.py", "from mysite.celery import app as celery_app\n")

    def follow(self, text: str) -> None:
        """Write the files that `text` shows."""
        for path, code in markdown.files(text):
            self.add(path, code)

    def add(self, path: str, code: str) -> None:
        """Add to the settings; write any other file anew."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a" if file.name == "settings.py" else "w") as target:
            target.write(code)

    def change(self, path: str, pattern: str, replacement: str) -> None:
        """Change a file where the pattern matches."""
        file = self.home / path
        text, times = re.subn(pattern, replacement, file.read_text(), flags=re.DOTALL)
        assert times, f"{path} has no {pattern}"
        file.write_text(text)

    def run(self, command: str) -> str:
        """Run a command as the documentation prints it, and return what it prints."""
        process = self.start(command, output=subprocess.PIPE)
        output, _ = process.communicate(timeout=COMMAND_SEC)
        assert process.returncode == 0, f"{command}:\n{output.decode()}\n{self.log.read_text()}"
        return output.decode()

    def start(self, command: str, output: Any = None) -> subprocess.Popen[bytes]:
        """Start such a command and return its process."""
        words = shlex.split(command)
        environment = dict(self.environment)
        while "=" in words[0]:
            name, value = words.pop(0).split("=", 1)
            environment[name] = value
        program, *arguments = words
        if program != "python":  # A console script stands beside the interpreter.
            arguments = ["-m", program, *arguments]
        with self.log.open("ab") as log:
            process = children.start(
                [self.python, *arguments],
                cwd=self.home,
                env=environment,
                stdout=output or log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run statements one by one, and return the rows of the last."""
        with psycopg.connect(self.conninfo, autocommit=True, row_factory=dict_row) as client:
            for part in filter(str.strip, statement.split(";")):
                cursor = client.execute(part.encode())
            return cursor.fetchall() if cursor.description else []

    def await_row(self, query: str) -> None:
        """Wait until the query has a row."""
        until(lambda: self.sql(query), COMMAND_SEC, LOOK_EVERY_SEC)

    def leave(self) -> None:
        """End what was started, and drop the database and the queue."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        with psycopg.connect(host.DATABASE_URL, autocommit=True) as server:
            server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(self.name)))
        with Connection(str(host.CELERY_BROKER_URL)) as broker:
            queue = Queue(self.name, Exchange(self.name), routing_key=self.name)(broker)
            queue.declare()  # Only who knows its bindings can delete them from Redis.
            queue.delete()
            queue.exchange.delete()
