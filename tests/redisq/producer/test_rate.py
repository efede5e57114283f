"""The rate limit, which all producers share under one key."""

import threading
from collections.abc import Callable
from typing import Any

import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.producer.enqueueing import Enqueuer
from jobreaper.redisq.producer.scanning import Found
from tests.redisq.producer.conftest import Jobs, MakeProducer, Write
from tests.waiting import until


def files(count: int) -> list[Found]:
    return [Found(f"/data/{number}.txt", 1, 1) for number in range(count)]


def limited(make_config: Callable[..., Config], limit: int) -> Enqueuer:
    config = make_config(producer={"rate_limit_per_sec": limit})
    return Enqueuer(connect(config), config)


def test_the_limit_leaves_the_rest_for_later(
    make_config: Callable[..., Config], jobs: Jobs
) -> None:
    enqueuer = limited(make_config, 5)
    push = enqueuer.push(files(8))
    assert (len(push.jobs), len(push.left)) == (5, 3)
    assert 0 < push.wait_sec <= 1
    assert len(jobs()) == 5


def test_producers_share_the_limit(
    make_config: Callable[..., Config], client: redis.Redis, keys: Keys
) -> None:
    one, other = limited(make_config, 5), limited(make_config, 5)
    assert len(one.push(files(3)).jobs) == 3
    # However slow this machine is, this is the same second.
    client.pexpire(keys.rate_limit, 600_000)
    push = other.push([Found(f"/other/{number}", 1, 1) for number in range(8)])
    assert len(push.jobs) == 2


def test_the_next_second_allows_more(make_config: Callable[..., Config], jobs: Jobs) -> None:
    enqueuer = limited(make_config, 5)
    left = enqueuer.push(files(12)).left

    def all_pushed() -> bool:
        left[:] = enqueuer.push(left).left
        return not left

    until(all_pushed)
    assert len(jobs()) == 12


def test_a_file_that_has_a_job_costs_nothing(make_config: Callable[..., Config]) -> None:
    enqueuer = limited(make_config, 5)
    enqueuer.push(files(3))
    push = enqueuer.push(files(5))
    assert (len(push.jobs), push.left) == (2, [])


def test_a_counter_of_a_client_that_died_does_not_stop_everybody(
    make_config: Callable[..., Config], client: redis.Redis, keys: Keys
) -> None:
    client.set(keys.rate_limit, 5)
    enqueuer = limited(make_config, 5)
    assert enqueuer.push(files(1)).jobs == []
    # -1 is a key that does not expire, -2 one that did.
    assert client.pttl(keys.rate_limit) != -1


def test_a_counter_that_is_no_number_counts_as_none(
    make_config: Callable[..., Config], client: redis.Redis, keys: Keys
) -> None:
    client.set(keys.rate_limit, "many", px=60_000)
    assert len(limited(make_config, 5).push(files(2)).jobs) == 2


def test_a_producer_that_waits_for_the_limit_stops_when_it_is_told(
    make_producer: MakeProducer, write: Write, client: redis.Redis, keys: Keys
) -> None:
    for number in range(3):
        write(f"{number}.txt")
    client.set(keys.rate_limit, 1, px=600_000)
    producer = make_producer(rate_limit_per_sec=1)
    thread = threading.Thread(target=producer.run)
    thread.start()
    until(lambda: producer.tally.found == 3)
    producer.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert producer.tally.pushed == 0


def test_jobs_come_out_in_the_order_of_their_files(
    make_config: Callable[..., Config], client: redis.Redis, keys: Keys
) -> None:
    pushed = limited(make_config, 0).push(files(3)).jobs
    popped: Any = [client.rpop(keys.queues["low"]) for _ in range(3)]
    assert popped == [job.encode() for job in pushed]
