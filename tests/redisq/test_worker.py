"""A pool of workers, from the first heartbeat to the end of the last job."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.dispatch import Signal

from jobreaper.exceptions import ConfigurationError, LeaseLost
from jobreaper.redisq import signals
from jobreaper.redisq.breaker import BreakerState
from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.slot import backoff
from jobreaper.redisq.worker import Worker
from tests.redisq import handlers
from tests.redisq.places import Places, ids, job, push
from tests.waiting import until

Start = Callable[..., Worker]


@pytest.fixture(autouse=True)
def fresh_handlers() -> Iterator[None]:
    handlers.reset()
    yield
    handlers.go_on.set()


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


@pytest.fixture
def high(keys: Keys) -> str:
    return keys.queues["high"]


@pytest.fixture
def start(make_config: Callable[..., Config], make_document: Any) -> Iterator[Start]:
    """Start a worker in a thread; it has ended when the test has."""
    begun: list[tuple[Worker, threading.Thread]] = []

    def run(drain: float = 20, **sections: Any) -> Worker:
        worker_section = make_document()["worker"] | {
            "handler": "tests.redisq.handlers.handle",
            "backoff": {"base": "10ms", "max": "50ms"},
        }
        worker_section |= sections.pop("worker", {})
        worker = Worker(make_config(worker=worker_section, **sections), drain=drain)
        thread = threading.Thread(target=worker.run)
        thread.start()
        begun.append((worker, thread))
        return worker

    yield run
    handlers.go_on.set()
    for worker, thread in begun:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()
        worker.client.close()


@pytest.fixture
def hear() -> Iterator[Callable[[Signal], list[dict[str, Any]]]]:
    """Collect what a signal says, until the test ends."""
    connected: list[tuple[Signal, Callable[..., None]]] = []

    def listen(signal: Signal) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []

        def note(signal: Signal, sender: object, **values: Any) -> None:
            said.append(values)

        signal.connect(note, weak=False)
        connected.append((signal, note))
        return said

    yield listen
    for signal, note in connected:
        signal.disconnect(note)


Hear = Callable[[Signal], list[dict[str, Any]]]


def test_every_job_is_completed_once(start: Start, places: Places, high: str, keys: Keys) -> None:
    push(places.client, high, *(job(number) for number in range(50)))
    push(places.client, keys.queues["low"], *(job(number) for number in range(50, 100)))
    start(worker={"count": 8})
    until(lambda: len(places.completed()) == 100)
    assert places.count() == {f"job-{number}": 1 for number in range(100)}
    assert Counter(handlers.started) == places.count()


def test_a_job_that_fails_is_tried_again_and_then_a_dead_letter(
    start: Start, places: Places, high: str, hear: Hear
) -> None:
    retried, dead = hear(signals.job_retried), hear(signals.job_dead_lettered)
    push(places.client, high, job(1, extra={"do": "fail"}))
    start(worker={"max_retries": 2})
    [letter] = until(places.dead)
    assert handlers.started == ["job-1"] * 3
    assert (letter.reason, letter.detail) == ("failed", "ValueError: went wrong")
    assert letter.queue == high
    assert letter.job is not None
    assert letter.job.retries == 2
    assert [each["job"].retries for each in retried] == [1, 2]
    assert [each["delay_sec"] for each in retried] == [0.01, 0.02]
    assert [each["reason"] for each in until(lambda: dead)] == ["failed"]


def test_backoff_doubles_up_to_its_maximum() -> None:
    waits = [backoff(attempt, base=0.5, longest=10) for attempt in (1, 2, 3, 4, 5, 6, 10_000)]
    assert waits == [0.5, 1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(
    ("what", "detail"), [("exit", "SystemExit: 3"), ("be unspeakable", "Unspeakable")]
)
def test_whatever_a_handler_raises_fails_its_job_and_nothing_else(
    start: Start, places: Places, high: str, what: str, detail: str
) -> None:
    push(places.client, high, job(1, extra={"do": what}), job(2))
    start(worker={"max_retries": 0, "count": 1})
    until(lambda: ids(places.completed()) == {"job-2": 1})
    assert [letter.detail for letter in places.dead()] == [detail]


HOSTILE = [
    b"",
    b"not json",
    b"[1, 2]",
    b'{"id": "x"}',
    b"\0\xff\xfe",
    b"[" * 100_000,
    b'{"id":"x","filepath":"y","retries":-1}',
    b'{"id":"x","filepath":"y","retries":1e400}',
    b'{"id":"\\ud800","filepath":"y"}',
    b"x" * 3_000_000,
]


def test_malformed_entries_are_dead_letters_and_stop_nothing(
    start: Start, places: Places, high: str
) -> None:
    push(places.client, high, *HOSTILE, job(1))
    start(worker={"count": 1})
    until(places.completed)
    letters = places.dead()
    assert [letter.entry for letter in letters] == HOSTILE
    assert {letter.reason for letter in letters} == {"malformed"}
    assert all(letter.detail for letter in letters)


def test_a_job_that_cannot_be_written_again_is_a_dead_letter(
    start: Start, places: Places, high: str
) -> None:
    """Python reads it, and has no JSON for it."""
    strange = b'{"id":"x","filepath":"y","do":"fail","more":1e999}'
    push(places.client, high, strange, job(1))
    start(worker={"count": 1})
    until(places.completed)
    assert [letter.entry for letter in until(places.dead)] == [strange]
    assert handlers.started.count("x") <= 1


def test_a_job_goes_back_to_the_queue_that_it_came_from(
    start: Start, places: Places, keys: Keys
) -> None:
    """A foreign client pushed it, and said nothing about a queue."""
    places.client.lpush(keys.queues["low"], b'{"id":"a","filepath":"/x","do":"fail"}')
    start(worker={"backoff": {"base": "60s", "max": "60s"}})
    [waiting] = until(lambda: places.delayed("low"))
    assert b'"retries":1' in waiting
    assert f'"origin_queue":"{keys.queues["low"]}"'.encode() in waiting


def test_heartbeats_are_there_before_the_first_job_and_go_with_the_worker(
    start: Start, places: Places, high: str, keys: Keys
) -> None:
    push(places.client, high, job(1, extra={"do": "wait"}))
    worker = start()
    until(lambda: handlers.started)
    beats = [keys.heartbeat(each) for each in worker.worker_ids]
    assert places.client.exists(*beats) == 2
    handlers.go_on.set()
    worker.stop()
    until(lambda: places.client.exists(*beats) == 0)


def test_a_long_job_keeps_its_heartbeat(
    start: Start, places: Places, high: str, keys: Keys
) -> None:
    push(places.client, high, job(1, extra={"do": "wait"}))
    start(worker={"count": 1})
    [name] = until(places.processing)
    # As if more than half of the time to live had passed.
    places.client.pexpire(keys.heartbeat(name), 2400)
    until(lambda: places.client.pttl(keys.heartbeat(name)) > 2500)


def test_a_job_that_was_taken_back_is_noticed_and_its_end_rejected(
    start: Start, places: Places, high: str, keys: Keys, hear: Hear
) -> None:
    stale, lost, ended = map(hear, (signals.stale_completion, signals.job_lost, signals.run_ended))
    push(places.client, high, job(1, extra={"do": "check"}))
    start(worker={"count": 1})
    [name] = until(places.processing)
    places.client.delete(keys.processing(name))
    # By the next heartbeat.
    until(lambda: stale)
    assert [each["job"].id for each in lost] == ["job-1"]
    assert isinstance(ended[0]["error"], LeaseLost)
    assert stale[0]["verb"] == "fail"
    assert places.everything() == []


def test_a_worker_that_stops_ends_the_job_that_it_has(
    start: Start, places: Places, high: str
) -> None:
    push(places.client, high, job(1, extra={"do": "wait"}), job(2))
    worker = start(worker={"count": 1})
    until(lambda: handlers.started)
    worker.stop()
    handlers.go_on.set()
    until(places.completed)
    assert ids(places.completed()) == {"job-1": 1}
    assert places.queue() == [job(2).encode()]


def test_a_job_that_does_not_end_in_time_goes_back_unharmed(
    start: Start, places: Places, high: str, hear: Hear
) -> None:
    released, stale = hear(signals.job_released), hear(signals.stale_completion)
    slow = job(1, extra={"do": "wait"})
    push(places.client, high, slow, job(2))
    worker = start(drain=0.2, worker={"count": 1})
    until(lambda: handlers.started)
    worker.stop()
    until(lambda: places.queue() == [slow.encode(), job(2).encode()])
    assert places.processing() == {}
    # Whatever the handler does now.
    handlers.go_on.set()
    until(lambda: stale)
    assert [each["job"] for each in released] == [slow]
    assert places.completed() == []


def test_a_queue_whose_jobs_fail_is_left_alone_and_tried_again(
    start: Start, places: Places, high: str, keys: Keys
) -> None:
    low = keys.queues["low"]
    failing = [job(number, extra={"do": "fail"}) for number in range(5)]
    push(places.client, high, *failing)
    worker = start(
        worker={"count": 1, "backoff": {"base": "60s", "max": "60s"}},
        circuit_breaker={"min_samples": 5, "cooldown_period": "500ms"},
    )
    until(lambda: worker.breakers[high].state is BreakerState.OPEN)
    push(places.client, high, job(6))
    push(places.client, low, job(7))
    until(lambda: ids(places.completed()) == {"job-6": 1, "job-7": 1})
    assert ids(places.completed()[:1]) == {"job-7": 1}
    assert worker.breakers[high].state is BreakerState.CLOSED


@pytest.mark.parametrize(
    "handler", ["", "tests.redisq.handlers.nothing", "no.such.module", "handlers.not_a_function"]
)
def test_a_handler_that_cannot_be_used_is_said_so(
    make_config: Callable[..., Config], make_document: Any, handler: str
) -> None:
    path = f"tests.redisq.{handler}" if handler.startswith("handlers") else handler or None
    config = make_config(worker=make_document()["worker"] | {"handler": path})
    with pytest.raises(ConfigurationError, match=r"worker\.handler \(WORKER_HANDLER\)"):
        Worker(config)
