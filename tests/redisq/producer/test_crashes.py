"""Producers that are killed, and a Redis that goes away: each file is a job, and no file is two."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from jobreaper.redisq.connecting import connect
from jobreaper.redisq.job import parse
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.producer import Producer
from tests.processes.children import ROOT
from tests.redisq.producer.conftest import Write
from tests.redisq.servers import Server
from tests.waiting import until

pytestmark = pytest.mark.process

FILES = 1000


@pytest.fixture
def server(open_path: Path) -> Iterator[Server]:
    """A Redis of the test's own, which writes everything to the disk."""
    found = Server(open_path)
    found.start()
    yield found
    found.kill()


def pushed(client: redis.Redis, keys: Keys) -> Counter[str]:
    """How many jobs each file has."""
    found: Counter[str] = Counter()
    for queue in keys.queues.values():
        entries: Any = client.lrange(queue, 0, -1)
        found.update(parse(entry).filepath for entry in entries)
    return found


@pytest.mark.timeout(300)
def test_producers_that_are_killed_leave_no_file_out_and_push_none_twice(
    make_document: Callable[..., dict[str, Any]],
    client: redis.Redis,
    keys: Keys,
    directory: Path,
    write: Write,
    tmp_path: Path,
) -> None:
    for number in range(FILES):
        write(f"{number % 20}/{number}.txt")
    # Slow enough to be killed in the middle.
    producer = {"scan_dir": str(directory), "rate_limit_per_sec": 400}
    path = tmp_path / "redisq.yaml"
    path.write_text(yaml.safe_dump(make_document(producer=producer)))
    command = [sys.executable, "manage.py", "redisq", "--role", "producer", "--once"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, "--config", str(path)],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def await_jobs(number: int) -> None:
        until(lambda: sum(pushed(client, keys).values()) >= number, 60)

    children = [start(), start()]
    try:
        for limit in (100, 400):
            await_jobs(limit)
            victim = children.pop(0)
            victim.send_signal(signal.SIGKILL)
            victim.wait(60)
            children.append(start())
        for child in children:
            assert child.wait(100) == 0
    finally:
        for child in children:
            child.kill()
            child.wait(60)
    found = pushed(client, keys)
    assert len(found) == FILES
    assert set(found.values()) == {1}


@pytest.mark.parametrize("with_data", [True, False])
def test_a_producer_goes_on_after_a_restart_of_redis(
    make_document: Callable[..., dict[str, Any]],
    server: Server,
    directory: Path,
    write: Write,
    run_producer: Callable[[Producer], None],
    with_data: bool,
) -> None:
    for number in range(50):
        write(f"{number}.txt")
    document = make_document(
        redis={"addr": str(server.socket), "db": 0, "max_retries": 0},
        producer={"scan_dir": str(directory), "rate_limit_per_sec": 0},
    )
    config = from_document(document)
    keys = Keys.of(config)
    producer = Producer(config, rescan_sec=0.5)
    run_producer(producer)
    with connect(config, retries=3) as client:
        until(lambda: len(pushed(client, keys)) == 50, 60)
        server.restart(with_data=with_data)
        write("after.txt")
        # What Redis has lost is pushed again by the next scan.
        until(lambda: len(pushed(client, keys)) == 51, 60)
        assert set(pushed(client, keys).values()) == {1}
