"""How fast the Redis queue is, beside RQ and Celery on the same Redis in the same run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from jobreaper.redisq.job import Job
from tests.benchmarks import redis_tasks
from tests.benchmarks.conftest import Report
from tests.benchmarks.noop import noop
from tests.processes.children import ROOT
from tests.redisq.conftest import running
from tests.redisq.servers import INSTALLED, Server, programs
from tests.waiting import until

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900), pytest.mark.django_db(transaction=True)]

JOBS = 5_000
# A process for each job takes its time.
JOBS_OF_RQ = 500

QUEUE = "bench"
PLAIN = {"DJANGO_SETTINGS_MODULE": "tests.redisq.settings"}


@pytest.fixture
def server() -> Iterator[Server]:
    """The Redis of this machine if it has one, without its own disk in the way."""
    with running(INSTALLED or programs()["embedded"]) as server:
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            client.config_set("appendonly", "no")
        yield server


@contextmanager
def worker(log: Path, *arguments: str, **environment: str) -> Iterator[None]:
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def pace(client: Any, queue: str, jobs: int) -> float:
    """Return how many jobs a second are taken from `queue`, the start of the worker left out."""
    until(lambda: client.llen(queue) < jobs * 0.95, timeout_sec=120, every_sec=0.002)
    began, before = time.perf_counter(), client.llen(queue)
    until(lambda: client.llen(queue) == 0, timeout_sec=300, every_sec=0.002)
    return float(before / (time.perf_counter() - began))


@dataclass
class Place:
    """Where each queue is measured: the server, a client of it, a directory."""

    server: Server
    client: Any
    tmp_path: Path


def own(place: Place, count: int, **environment: str) -> float:
    server, client, tmp_path = place.server, place.client, place.tmp_path
    config = tmp_path / "redisq.yaml"
    document = {
        "redis": {"addr": str(server.socket)},
        "worker": {
            "count": count,
            "handler": "tests.benchmarks.noop.noop",
            "priorities": ["low"],
            "queues": {"low": QUEUE},
        },
        "producer": {"default_priority": "low"},
        "observability": {"metrics_port": 0, "log_level": "warning"},
    }
    config.write_text(yaml.safe_dump(document))
    entries = [Job(id=str(n), filepath="/x", origin_queue=QUEUE).encode() for n in range(JOBS)]
    client.lpush(QUEUE, *entries)
    arguments = ["manage.py", "redisq", "--role=worker", "--config", str(config)]
    with worker(tmp_path / "own.log", *arguments, **environment):
        per_sec = pace(client, QUEUE, JOBS)
        until(lambda: client.llen("jobqueue:completed") == JOBS)
    return per_sec


def rq(place: Place, *options: str) -> float:
    server, client, tmp_path = place.server, place.client, place.tmp_path
    queue = pytest.importorskip("rq").Queue(QUEUE, connection=client)
    for number in range(JOBS_OF_RQ):
        queue.enqueue(noop, number)
    url = f"unix://{server.socket}"
    arguments = ["-m", "rq.cli", "worker", QUEUE, "--burst", "--quiet", "--url", url, *options]
    with worker(tmp_path / "rq.log", *arguments, **PLAIN, PYTHONPATH=str(ROOT)):
        return pace(client, f"rq:queue:{QUEUE}", JOBS_OF_RQ)


def celery(place: Place, *options: str) -> float:
    server, client, tmp_path = place.server, place.client, place.tmp_path
    url = f"redis+socket://{server.socket}"
    redis_tasks.app.conf.update(broker_url=url)
    with redis_tasks.app.connection_for_write() as connection, connection.Producer() as producer:
        for number in range(JOBS):
            redis_tasks.task.apply_async((number,), producer=producer)
    arguments = ["-m", "celery", "-A", "tests.benchmarks.redis_tasks", "--broker", url, "worker"]
    quiet = ["--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel=WARNING"]
    with worker(tmp_path / "celery.log", *arguments, *quiet, *options, PYTHONPATH=str(ROOT)):
        return pace(client, redis_tasks.app.conf.task_default_queue, JOBS)


def test_no_op_jobs(server: Server, database_url: str, tmp_path: Path, report: Report) -> None:
    recorded = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url}
    cases: dict[str, Callable[[Place], float]] = {
        "redisq, 1 worker": lambda place: own(place, 1, **PLAIN),
        "redisq, 4 workers": lambda place: own(place, 4, **PLAIN),
        "redisq, 4 workers, events in PostgreSQL": lambda place: own(place, 4, **recorded),
        "RQ, a process for each job": rq,
        "RQ, SimpleWorker": lambda place: rq(place, "-w", "rq.worker.SimpleWorker"),
        "Celery, solo": lambda place: celery(place, "--pool", "solo"),
        "Celery, prefork with 2 children": lambda place: celery(place, "--concurrency", "2"),
    }
    rows: list[tuple[str, str]] = []
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        place = Place(server, client, tmp_path)
        version = str(dict(place.client.info("server"))["redis_version"])
        for what, run in cases.items():
            client.flushall()
            rows.append((what, f"{run(place):,.0f}"))
    report(f"No-op jobs, one process each, Redis {version}", [("", "jobs/s"), *rows])
