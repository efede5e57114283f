"""`manage.py redisq` as a process: files go in at one end, and jobs come out at the other."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from jobreaper.redisq.job import parse
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.logs import KEYS
from tests.processes.children import ROOT
from tests.redisq.test_metrics import free_port
from tests.waiting import until

pytestmark = pytest.mark.process

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    return path


@pytest.fixture
def start(
    make_document: Callable[..., dict[str, Any]], tmp_path: Path, directory: Path
) -> Iterator[Start]:
    """Start the command; it has ended when the test has."""
    children: list[subprocess.Popen[str]] = []

    def run(*arguments: str, worker: Any = None, **sections: Any) -> subprocess.Popen[str]:
        usual = make_document()["worker"] | {"handler": "tests.redisq.handlers.handle"}
        producer = {"scan_dir": str(directory), "rate_limit_per_sec": 0}
        document = make_document(worker=usual | (worker or {}), producer=producer, **sections)
        path = tmp_path / f"{len(children)}.yaml"
        path.write_text(yaml.safe_dump(document))
        errors = open(tmp_path / f"{len(children)}.log", "wb")  # noqa: SIM115
        children.append(
            subprocess.Popen(
                [sys.executable, "manage.py", "redisq", "--config", str(path), *arguments],
                cwd=ROOT,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                text=True,
            )
        )
        errors.close()
        return children[-1]

    yield run
    for child in children:
        child.kill()
        child.wait(60)


def log_of(tmp_path: Path, number: int = 0) -> list[dict[str, Any]]:
    """The lines that a process has logged."""
    text = (tmp_path / f"{number}.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_files_become_jobs_that_are_run_counted_and_logged(
    start: Start, directory: Path, tmp_path: Path, client: redis.Redis, keys: Keys
) -> None:
    port = free_port()
    for number in range(20):
        (directory / f"{number}.pdf").write_text("x")
    child = start("--role", "all", observability={"metrics_port": port, "log_level": "debug"})
    until(lambda: client.llen(keys.completed) == 20, 60)
    (directory / "later.txt").write_text("x")
    until(lambda: client.llen(keys.completed) == 21, 60)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        page = answer.read().decode()
    assert f'jobs_completed_total{{queue="{keys.queues["high"]}"}} 20.0' in page
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 0
    lines = log_of(tmp_path)
    assert {key for line in lines for key in line} <= set(KEYS)
    completed = [line for line in lines if line["msg"].startswith("completed")]
    assert len({line["job_id"] for line in completed}) == 21


def test_sigterm_lets_jobs_end_and_gives_back_those_that_do_not(
    start: Start, tmp_path: Path, client: redis.Redis, keys: Keys
) -> None:
    stuck = {"id": "stuck", "filepath": "/a", "do": "wait", "retries": 2}
    client.lpush(keys.queues["high"], json.dumps(stuck))
    child = start("--role", "worker", "--shutdown-timeout", "0.2")
    until(lambda: list(client.scan_iter(keys.processing_glob)), 60)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 0
    entries: Any = client.lrange(keys.queues["high"], 0, -1)
    (entry,) = entries
    assert (parse(entry).id, parse(entry).retries) == ("stuck", 2)
    assert not list(client.scan_iter(keys.processing_glob))


def test_spans_are_sent_to_the_endpoint(
    start: Start, tmp_path: Path, client: redis.Redis, keys: Keys
) -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        client.lpush(keys.queues["high"], json.dumps({"id": "traced-job", "filepath": "/a"}))
        endpoint = f"http://127.0.0.1:{server.server_port}"
        tracing = {"enabled": True, "endpoint": endpoint}
        child = start("--role", "worker", observability={"metrics_port": 0, "tracing": tracing})
        until(lambda: client.llen(keys.completed) == 1, 60)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert {path for path, _ in received} == {"/v1/traces"}
    sent = b"".join(body for _, body in received)
    assert b"jobreaper.redisq.run" in sent
    assert b"traced-job" in sent
