"""A directory of files, and producers of it."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.producer import Producer

# Long enough ago that a file counts as whole.
OLD_SEC = 60

Write = Callable[..., Path]
Jobs = Callable[[], list[Job]]
MakeProducer = Callable[..., Producer]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory that producers scan."""
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def write(directory: Path) -> Write:
    """Write a file below the directory, as of a while ago unless it is to be new."""

    def write(name: str, content: str = "x", *, age_sec: float = OLD_SEC) -> Path:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        when = time.time() - age_sec
        os.utime(path, (when, when))
        return path

    return write


@pytest.fixture
def make_producer(make_config: Callable[..., Config], directory: Path) -> MakeProducer:
    """A producer of the directory."""

    def make(rescan_sec: float = 3600, **producer: Any) -> Producer:
        section = {"scan_dir": str(directory), "rate_limit_per_sec": 0}
        return Producer(make_config(producer=section | producer), rescan_sec=rescan_sec)

    return make


@pytest.fixture
def run_producer() -> Iterator[Callable[[Producer], None]]:
    """Run a producer in a thread; it is stopped when the test ends."""
    running: list[tuple[Producer, threading.Thread]] = []

    def run(producer: Producer) -> None:
        thread = threading.Thread(target=producer.run)
        thread.start()
        running.append((producer, thread))

    yield run
    for producer, thread in running:
        producer.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def run(
    make_producer: MakeProducer, run_producer: Callable[[Producer], None]
) -> Callable[..., Producer]:
    """Make a producer and run it."""

    def run(**options: Any) -> Producer:
        producer = make_producer(**options)
        run_producer(producer)
        return producer

    return run


@pytest.fixture
def jobs(client: redis.Redis, keys: Keys) -> Jobs:
    """All jobs in the queues, as they were pushed."""

    def read() -> list[Job]:
        entries: list[Any] = []
        for queue in keys.queues.values():
            entries += reversed(client.lrange(queue, 0, -1))
        return [parse(entry) for entry in entries]

    return read
