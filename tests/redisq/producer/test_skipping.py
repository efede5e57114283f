"""Whatever lies in a directory, a producer goes on, and says what it left out."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.producer import signals
from jobreaper.redisq.producer.scanning import Found, Scanner, Skipped, Why
from tests.redisq.producer.conftest import Jobs, MakeProducer, Write

Skips = list[tuple[str, Why]]
MakeConfig = Callable[..., Config]

# An account that owns nothing.
NOBODY = 65534


@pytest.fixture
def skips() -> Iterator[Skips]:
    """What was said to be skipped: the name and why."""
    found: Skips = []

    def note(path: str, why: Why, **_: Any) -> None:
        found.append((os.path.basename(path), why))

    signals.file_skipped.connect(note)
    yield found
    signals.file_skipped.disconnect(note)


def paths(jobs: Jobs) -> list[str]:
    return sorted(os.path.basename(job.filepath) for job in jobs())


def test_links_out_of_the_directory_are_skipped(
    make_producer: MakeProducer, write: Write, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    write("ok.txt")
    secret = directory.parent / "secret"
    secret.mkdir()
    (secret / "key.txt").write_text("secret")
    (directory / "file").symlink_to(secret / "key.txt")
    (directory / "folder").symlink_to(secret)
    (directory / "up").symlink_to("..")
    beside = directory.parent / "data-of-others"
    beside.mkdir()
    (beside / "x").write_text("x")
    (directory / "beside").symlink_to(beside / "x")
    make_producer().run(once=True)
    assert paths(jobs) == ["ok.txt"]
    assert [why for _, why in skips] == [Why.LINKS_OUT] * 4


def test_a_link_within_the_directory_is_the_file_itself(
    make_producer: MakeProducer, write: Write, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    write("real/a.txt")
    (directory / "link.txt").symlink_to("real/a.txt")
    (directory / "folder").symlink_to("real")
    (directory / "circle").symlink_to(".")
    make_producer().run(once=True)
    assert [job.filepath for job in jobs()] == [str(directory / "real/a.txt")]
    assert skips == []


def test_links_that_lead_nowhere_are_skipped(
    make_producer: MakeProducer, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    (directory / "dangling").symlink_to("none")
    (directory / "one").symlink_to("two")
    (directory / "two").symlink_to("one")
    make_producer().run(once=True)
    assert jobs() == []
    assert sorted(skips) == [
        ("dangling", Why.GONE),
        ("one", Why.UNREADABLE),
        ("two", Why.UNREADABLE),
    ]


def test_hostile_names_arrive_as_they_are_or_are_skipped(
    make_producer: MakeProducer, write: Write, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    odd = [
        "a\nb",
        '"quoted"',
        "  ",
        "-rf",
        "\x1b[31m",
        "é\u0301",
        "\u202e",
        "*",
        "$(id)",
        "x" * 255,
    ]
    for name in odd:
        write(name)
    (directory / os.fsdecode(b"\xff\xfe.txt")).write_text("x")
    make_producer().run(once=True)
    assert paths(jobs) == sorted(odd)
    assert [why for _, why in skips] == [Why.NAME]


def test_paths_longer_than_the_system_opens_are_skipped(
    make_producer: MakeProducer, write: Write, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    write("ok.txt")
    before = os.getcwd()
    os.chdir(directory)
    try:
        # One step at a time, since no path may be longer.
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        Path("f").write_text("x")
    finally:
        os.chdir(before)
    make_producer().run(once=True)
    assert paths(jobs) == ["ok.txt"]
    assert [why for _, why in skips] == [Why.UNREADABLE]


def test_what_is_no_file_is_skipped_without_waiting_for_it(
    make_producer: MakeProducer, write: Write, jobs: Jobs, skips: Skips, directory: Path
) -> None:
    write("ok.txt")
    os.mkfifo(directory / "pipe")
    before = os.getcwd()
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        os.chdir(before)
        make_producer().run(once=True)
    assert paths(jobs) == ["ok.txt"]
    assert sorted(skips) == [("pipe", Why.NO_FILE), ("socket", Why.NO_FILE)]


@contextmanager
def without_privileges() -> Iterator[None]:
    """Let permissions count in the block: root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_what_cannot_be_read_is_skipped(open_path: Path, make_config: MakeConfig) -> None:
    open_path.chmod(0o755)
    for name in ("ok.txt", "closed.txt", "locked/a.txt"):
        (open_path / name).parent.mkdir(exist_ok=True)
        (open_path / name).write_text("x")
    (open_path / "closed.txt").chmod(0)
    (open_path / "locked").chmod(0)
    scanner = Scanner(make_config(producer={"scan_dir": str(open_path)}).producer)
    with without_privileges():
        found = [scanner.open(each) if isinstance(each, Found) else each for each in scanner.scan()]
    (open_path / "locked").chmod(0o700)
    assert sorted(each[:2] for each in found if isinstance(each, Skipped)) == [
        (str(open_path / "closed.txt"), Why.UNREADABLE),
        (str(open_path / "locked"), Why.UNREADABLE),
    ]
    assert [each.path for each in found if isinstance(each, Found)] == [str(open_path / "ok.txt")]


def test_a_file_that_vanishes_between_scan_and_look_is_skipped(
    make_producer: MakeProducer, write: Write, directory: Path
) -> None:
    path = write("a.txt")
    scanner = make_producer()._scanner
    (found,) = scanner.scan()
    assert isinstance(found, Found)
    path.unlink()
    assert scanner.open(found) == (str(path), Why.GONE)
    path.symlink_to("/etc/passwd")
    assert scanner.open(found) == (str(path), Why.UNREADABLE)


def test_files_that_come_and_go_during_a_scan_do_not_end_it(
    make_producer: MakeProducer, write: Write, jobs: Jobs, directory: Path
) -> None:
    for number in range(300):
        write(f"{number}/stays.txt")
        write(f"{number}/goes.txt")
    done = threading.Event()

    def remove() -> None:
        for number in range(299, -1, -1):
            (directory / f"{number}/goes.txt").unlink()
        done.set()

    remover = threading.Thread(target=remove)
    remover.start()
    make_producer().run(once=True)
    remover.join(60)
    assert paths(jobs).count("stays.txt") == 300


def test_a_file_is_said_to_be_skipped_once(
    make_producer: MakeProducer, skips: Skips, directory: Path
) -> None:
    (directory / "dangling").symlink_to("none")
    producer = make_producer()
    producer._scan()
    producer._scan()
    assert len(skips) == producer.tally.skipped == 1


def test_a_hash_that_is_none_is_reported_and_does_not_end_the_producer(
    make_producer: MakeProducer, write: Write, client: redis.Redis, keys: Keys, jobs: Jobs
) -> None:
    client.set(keys.named("known_files"), "somebody's text")
    write("a.txt")
    producer = make_producer()
    failures: list[str] = []

    def note(verb: str, error: Exception, **_: Any) -> None:
        failures.append(verb)
        client.delete(keys.named("known_files"))

    signals.redis_failed.connect(note)
    try:
        producer.run(once=True)
    finally:
        signals.redis_failed.disconnect(note)
    assert failures == ["look"]
    assert paths(jobs) == ["a.txt"]
