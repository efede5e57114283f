"""A file becomes a job once, whoever sees it, and however often."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from jobreaper.exceptions import ConfigurationError, RedisUnreachable
from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.producer import Producer, signals
from tests.redisq.producer.conftest import Jobs, MakeProducer, Write
from tests.waiting import until

Run = Callable[..., Producer]


def names(jobs: list[Job]) -> list[str]:
    return sorted(os.path.basename(job.filepath) for job in jobs)


def test_each_file_becomes_a_job_with_its_queue_and_trace(
    make_producer: MakeProducer, write: Write, jobs: Jobs, keys: Keys
) -> None:
    path = write("deep/down/report.PDF", "content")
    write("notes.txt")
    assert make_producer().run(once=True).pushed == 2
    found = {os.path.basename(job.filepath): job for job in jobs()}
    report = found["report.PDF"]
    assert report.filepath == str(path)
    assert (report.filesize, report.priority, report.retries) == (7, "high", 0)
    assert report.origin_queue == keys.queues["high"]
    assert (len(report.trace_id), len(report.span_id)) == (32, 16)
    assert report.creation_time
    assert (found["notes.txt"].priority, found["notes.txt"].origin_queue) == (
        "low",
        keys.queues["low"],
    )


def test_globs_decide_what_is_meant(make_producer: MakeProducer, write: Write, jobs: Jobs) -> None:
    for name in ("a.pdf", "in/b.pdf", "c.txt", "in/d.tmp", ".DS_Store"):
        write(name)
    make_producer(include_globs=["**/*.pdf", "in/*"], exclude_globs=["**/*.tmp"]).run(once=True)
    assert names(jobs()) == ["a.pdf", "b.pdf"]


def test_a_file_is_a_job_once_across_restarts(
    make_producer: MakeProducer, write: Write, jobs: Jobs, client: redis.Redis, keys: Keys
) -> None:
    write("a.txt")
    assert make_producer().run(once=True).pushed == 1
    client.delete(*keys.queues.values())
    assert make_producer().run(once=True).pushed == 0
    assert jobs() == []


def test_a_file_is_a_job_once_among_producers_that_run_at_once(
    make_producer: MakeProducer, write: Write, jobs: Jobs
) -> None:
    for number in range(600):
        write(f"{number % 7}/{number}.txt")
    producers = [make_producer() for _ in range(3)]
    barrier = threading.Barrier(3)

    def produce(producer: Producer) -> None:
        barrier.wait(20)
        producer.run(once=True)

    threads = [threading.Thread(target=produce, args=[each]) for each in producers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(each.tally.pushed for each in producers) == 600
    assert len(set(names(jobs()))) == len(jobs()) == 600


def test_a_file_that_was_changed_is_a_new_job(
    make_producer: MakeProducer, write: Write, jobs: Jobs
) -> None:
    write("a.txt", "one")
    make_producer().run(once=True)
    write("a.txt", "other", age_sec=30)
    make_producer().run(once=True)
    assert [job.filesize for job in jobs()] == [3, 5]


def test_a_file_that_is_being_written_waits_until_it_is_whole(
    make_producer: MakeProducer, write: Write, jobs: Jobs
) -> None:
    write("growing.txt", "x", age_sec=0)
    make_producer().run(once=True)
    assert [job.filesize for job in jobs()] == [1]


def test_a_time_in_the_future_does_not_keep_a_file_waiting(
    make_producer: MakeProducer, write: Write, jobs: Jobs
) -> None:
    write("tomorrow.txt", age_sec=-86_400)
    make_producer().run(once=True)
    assert names(jobs()) == ["tomorrow.txt"]


def test_what_is_gone_is_forgotten_and_may_come_back(
    make_producer: MakeProducer, write: Write, client: redis.Redis, keys: Keys, jobs: Jobs
) -> None:
    write("stays.txt")
    gone = write("gone.txt")
    make_producer().run(once=True)
    gone.unlink()
    make_producer().run(once=True)
    known: Any = client.hkeys(keys.named("known_files"))
    assert [os.path.basename(path) for path in known] == [b"stays.txt"]
    write("gone.txt")
    make_producer().run(once=True)
    assert names(jobs()) == ["gone.txt", "gone.txt", "stays.txt"]


def test_a_directory_that_is_empty_at_once_is_not_mounted_and_nothing_is_forgotten(
    make_producer: MakeProducer, write: Write, client: redis.Redis, keys: Keys
) -> None:
    path = write("a.txt")
    make_producer().run(once=True)
    path.unlink()
    make_producer().run(once=True)
    assert client.hlen(keys.named("known_files")) == 1


def test_files_of_other_directories_are_not_forgotten(
    make_producer: MakeProducer, write: Write, client: redis.Redis, keys: Keys
) -> None:
    write("a.txt")
    client.hset(keys.named("known_files"), "/elsewhere/b.txt", "1:1")
    make_producer().run(once=True)
    assert client.hlen(keys.named("known_files")) == 2


def test_changes_are_seen(run: Run, write: Write, jobs: Jobs, directory: Path) -> None:
    write("before.txt")
    producer = run()
    until(lambda: producer.tally.pushed == 1, 60)
    write("after.txt")
    write("new/deep/below.txt")
    until(lambda: names(jobs()) == ["after.txt", "before.txt", "below.txt"], 60)
    outside = directory.parent / "outside.txt"
    outside.write_text("x")
    os.utime(outside, (1, 1))
    outside.rename(directory / "moved.txt")
    until(lambda: "moved.txt" in names(jobs()), 60)
    write("after.txt", "changed")
    until(lambda: len(jobs()) == 5, 60)


def test_a_directory_that_comes_whole_is_seen(
    run: Run, write: Write, jobs: Jobs, directory: Path
) -> None:
    producer = run()
    until(lambda: producer.tally.found == 0 and producer._next_progress > 0, 60)
    prepared = directory.parent / "prepared" / "a"
    prepared.mkdir(parents=True)
    for number in range(20):
        path = prepared / f"{number}.txt"
        path.write_text("x")
        os.utime(path, (1, 1))
    prepared.parent.rename(directory / "arrived")
    until(lambda: len(jobs()) == 20, 60)


def test_what_was_not_reported_is_found_by_the_next_scan(
    run: Run, write: Write, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    refused: list[Any] = []

    def note(error: OSError, **_: Any) -> None:
        refused.append(error)

    signals.watch_refused.connect(note)
    monkeypatch.setattr("watchdog.observers.api.BaseObserver.schedule", refuse)
    run(rescan_sec=0.1)
    write("late.txt")
    until(lambda: names(jobs()) == ["late.txt"], 60)
    assert len(refused) == 1


def test_a_redis_that_is_away_at_the_start_is_said(
    make_producer: MakeProducer, make_config: Callable[..., Any], directory: Path
) -> None:
    away = {"addr": "/nowhere/redis.sock", "db": 0, "max_retries": 0}
    config = make_config(redis=away, producer={"scan_dir": str(directory)})
    with pytest.raises(RedisUnreachable, match=r"/nowhere/redis\.sock"):
        Producer(config).run(once=True)


def test_a_directory_that_is_none_is_said(make_producer: MakeProducer, directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="PRODUCER_SCAN_DIR"):
        make_producer(scan_dir=str(directory / "none"))
