"""Which queue a worker fetches from."""

import threading
from collections import Counter

import pytest
import redis

from jobreaper.redisq.breaker import Breaker, BreakerState
from jobreaper.redisq.fetching import TURN, Fetcher, Taken, in_order
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.scripts import Scripts
from tests.redisq.places import Places, job, push


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


@pytest.fixture
def breakers(keys: Keys) -> dict[str, Breaker]:
    return {
        queue: Breaker(queue, failure_threshold=0.5, window=60, cooldown=3600, min_samples=1)
        for queue in keys.queues.values()
    }


@pytest.fixture
def fetcher(scripts: Scripts, breakers: dict[str, Breaker]) -> Fetcher:
    return Fetcher(scripts, "w1", breakers, wait=0.05)


def take(fetcher: Fetcher, scripts: Scripts) -> Taken | None:
    taken = fetcher.next(threading.Event())
    if taken is not None:
        assert scripts.complete("w1", 1, taken.entry)
    return taken


def test_every_lower_queue_comes_first_in_its_turn() -> None:
    queues = ["a", "b", "c", "d"]
    first = Counter(in_order(queues, number)[0] for number in range(30 * TURN))
    assert first == {"a": 30 * (TURN - 1), "b": 10, "c": 10, "d": 10}
    assert all(sorted(in_order(queues, number)) == queues for number in range(50))
    assert in_order(["a"], 0) == ["a"]


def test_a_busy_high_queue_does_not_starve_the_lower_one(
    fetcher: Fetcher, scripts: Scripts, places: Places, keys: Keys
) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    push(places.client, high, *(job(number) for number in range(200)))
    push(places.client, low, *(job(number) for number in range(200)))
    taken = [take(fetcher, scripts) for _ in range(10 * TURN)]
    assert Counter(each.queue for each in taken if each) == {high: 10 * (TURN - 1), low: 10}


def test_an_idle_worker_waits_at_every_queue(
    fetcher: Fetcher, scripts: Scripts, places: Places, keys: Keys
) -> None:
    for priority in ("low", "high"):
        assert take(fetcher, scripts) is None
        push(places.client, keys.queues[priority], job(priority))
        taken = take(fetcher, scripts)
        assert taken is not None
        assert taken.queue == keys.queues[priority]


def test_a_queue_whose_breaker_is_open_is_left_alone(
    fetcher: Fetcher, scripts: Scripts, places: Places, keys: Keys, breakers: dict[str, Breaker]
) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    push(places.client, high, job(1))
    push(places.client, low, job(2))
    ticket = breakers[high].admit()
    assert ticket is not None
    breakers[high].record(ticket, failed=True)
    assert breakers[high].state is BreakerState.OPEN
    taken = take(fetcher, scripts)
    assert taken is not None
    assert taken.queue == low
    assert take(fetcher, scripts) is None
    assert places.queue() == [job(1).encode()]


def test_a_trial_that_finds_no_job_is_given_back(
    scripts: Scripts, keys: Keys, places: Places
) -> None:
    queue = keys.queues["high"]
    breaker = Breaker(queue, failure_threshold=0.5, window=60, cooldown=0, min_samples=1)
    ticket = breaker.admit()
    assert ticket is not None
    breaker.record(ticket, failed=True)
    fetcher = Fetcher(scripts, "w1", {queue: breaker}, wait=0.05)
    for _ in range(3):
        assert fetcher.next(threading.Event()) is None
        assert breaker.state is BreakerState.HALF_OPEN
    push(places.client, queue, job(1))
    taken = fetcher.next(threading.Event())
    assert taken is not None
    # The trial is this job's now.
    assert breaker.admit() is None
    breaker.record(taken.ticket, failed=False)
    assert breaker.state is BreakerState.CLOSED


def test_an_entry_that_was_in_the_list_already_is_taken_up(
    fetcher: Fetcher, scripts: Scripts, places: Places, keys: Keys
) -> None:
    push(places.client, keys.queues["high"], job(1), job(2))
    scripts.fetch("w1", list(keys.queues.values()))
    taken = fetcher.next(threading.Event())
    assert taken is not None
    assert (taken.entry, taken.queue) == (job(1).encode(), None)
