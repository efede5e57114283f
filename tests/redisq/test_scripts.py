"""The moves between lists: at once or not at all, and only by the worker that has the entry."""

from dataclasses import replace

import pytest
import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.moves import verdict
from jobreaper.redisq.scripts import Scripts, Taking
from tests.redisq.conftest import MakeDocument
from tests.redisq.places import Places, job, push
from tests.redisq.servers import Server

W1, W2 = "w1", "w2"


@pytest.fixture
def config(make_document: MakeDocument, shared_server: Server) -> Config:
    """Each test here runs on every server that this machine has."""
    return from_document(make_document(redis={"addr": str(shared_server.socket)}))


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


@pytest.fixture
def high(keys: Keys) -> str:
    return keys.queues["high"]


@pytest.fixture
def low(keys: Keys) -> str:
    return keys.queues["low"]


def fetch(scripts: Scripts, high: str, worker: str = W1) -> bytes:
    fetched = scripts.fetch(worker, [high])
    assert fetched is not None
    return fetched.entry


def test_the_oldest_job_of_the_first_queue_is_fetched(
    scripts: Scripts, places: Places, high: str, low: str
) -> None:
    push(places.client, low, job(3))
    push(places.client, high, job(1), job(2))
    order = [scripts.fetch(f"w{number}", [high, low]) for number in range(4)]
    assert [(each.entry, each.queue) for each in order if each] == [
        (job(1).encode(), high),
        (job(2).encode(), high),
        (job(3).encode(), low),
    ]
    assert order[3] is None
    assert places.processing()["w0"] == [job(1).encode()]


def test_a_worker_with_an_entry_has_a_heartbeat(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    push(places.client, high, job(1), job(2))
    scripts.fetch(W1, [high])
    scripts.wait(W2, high, 5)
    for worker in (W1, W2):
        assert 4000 < places.client.pttl(keys.heartbeat(worker)) <= 5000


def test_an_entry_whose_fetch_was_not_answered_is_fetched_again(
    scripts: Scripts, places: Places, high: str, low: str
) -> None:
    push(places.client, high, job(1), job(2))
    first = fetch(scripts, high)
    again = scripts.fetch(W1, [low, high])
    assert again is not None
    assert (again.entry, again.queue) == (first, None)
    assert places.queue() == [job(2).encode()]


def test_a_queue_of_another_type_does_not_stop_the_others(
    scripts: Scripts, places: Places, high: str, low: str
) -> None:
    places.client.set(high, "not a list")
    push(places.client, low, job(1))
    fetched = scripts.fetch(W1, [high, low])
    assert fetched is not None
    assert fetched.queue == low
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        scripts.fetch(W2, [high, low])


def test_an_entry_that_came_while_the_worker_was_frozen_is_not_its_own(
    scripts: Scripts, places: Places, keys: Keys, high: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking move brought it, the heartbeat ran out, and the reaper took it back."""
    push(places.client, high, job(1))
    run = scripts._run

    def after_a_reap(name: str, *arguments: object) -> object:
        if name == "begin":
            places.be_late(W1)
            move = verdict(job(1).encode(), W1, keys, max_retries=3)
            assert scripts.take_back(W1, [move]) == [Taking.TAKEN]
        return run(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(scripts, "_run", after_a_reap)
    assert scripts.wait(W1, high, 5) is None
    assert places.processing() == {}


def test_a_completed_job_is_in_the_completed_list_byte_for_byte(
    scripts: Scripts, places: Places, high: str
) -> None:
    entry = b' {"id": "a\\u00e4", "filepath":"/x",  "more": [1.0, {}, []]} '
    push(places.client, high, entry)
    assert scripts.complete(W1, 1, fetch(scripts, high))
    assert places.everything() == places.completed() == [entry]


def test_a_failed_job_waits_in_the_order_of_due_times(
    scripts: Scripts, places: Places, high: str
) -> None:
    push(places.client, high, job(1), job(2))
    for number, delay in ((1, 60), (2, 30)):
        entry = fetch(scripts, high)
        again = job(number, retries=1).encode()
        assert scripts.retry(W1, number, entry, again=again, queue=high, delay=delay)
    assert places.delayed() == [job(2, retries=1).encode(), job(1, retries=1).encode()]
    assert scripts.promote() == 0
    places.make_due()
    assert scripts.promote() == 2
    assert len(places.queue()) == 2
    assert places.delayed() == []


def test_the_time_of_a_delayed_job_is_the_servers(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    push(places.client, high, job(1))
    seconds, microseconds = places.client.time()
    scripts.retry(W1, 1, fetch(scripts, high), again=b"{}", queue=high, delay=10)
    [(_, due)] = places.client.zrange(keys.delayed(high), 0, -1, withscores=True)
    assert 9.9e3 <= due - (seconds * 1000 + microseconds / 1000) < 40e3


def test_copies_of_a_job_are_delayed_each_by_itself(
    scripts: Scripts, places: Places, high: str
) -> None:
    push(places.client, high, job(1), job(1), job(1))
    for number, worker in ((1, W1), (2, W1), (1, W2)):
        entry = fetch(scripts, high, worker)
        again = job(1, retries=1).encode()
        assert scripts.retry(worker, number, entry, again=again, queue=high, delay=60)
    assert places.delayed() == [job(1, retries=1).encode()] * 3
    places.make_due()
    assert scripts.promote() == 3
    assert places.queue() == [job(1, retries=1).encode()] * 3


def test_a_delayed_job_of_a_foreign_client_needs_no_token(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    foreign = b'{"id":"a|b","filepath":"/x"}'
    places.client.zadd(keys.delayed(high), {foreign: 0})
    assert scripts.promote() == 1
    assert places.queue() == [foreign]


def test_a_released_job_is_the_next_of_its_queue(
    scripts: Scripts, places: Places, high: str
) -> None:
    push(places.client, high, job(1), job(2))
    assert scripts.release(W1, 1, fetch(scripts, high), high)
    assert places.queue() == [job(1).encode(), job(2).encode()]


VERBS = {
    "complete": lambda s, high: s.complete(W1, 7, job(1).encode()),
    "retry": lambda s, high: s.retry(W1, 7, job(1).encode(), again=b"{}", queue=high, delay=1),
    "bury": lambda s, high: s.bury(W1, 7, job(1).encode(), b"{}"),
    "release": lambda s, high: s.release(W1, 7, job(1).encode(), high),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_worker_whose_job_was_taken_back_writes_nothing(
    scripts: Scripts, places: Places, keys: Keys, high: str, verb: str
) -> None:
    push(places.client, high, job(1))
    entry = fetch(scripts, high)
    places.be_late(W1)
    assert scripts.take_back(W1, [verdict(entry, W1, keys, max_retries=3)]) == [Taking.TAKEN]
    before = places.everything()
    assert VERBS[verb](scripts, high) is False
    # Not even with the heartbeat of a later run.
    scripts.renew([W1])
    assert VERBS[verb](scripts, high) is False
    assert places.everything() == before


@pytest.mark.parametrize("verb", VERBS)
def test_an_end_whose_answer_was_lost_can_be_asked_for_again(
    scripts: Scripts, places: Places, high: str, verb: str
) -> None:
    push(places.client, high, job(1))
    fetch(scripts, high)
    assert VERBS[verb](scripts, high) is True
    before = places.everything()
    scripts.renew([W1])
    assert VERBS[verb](scripts, high) is True
    assert places.everything() == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_target_of_another_type_leaves_the_entry_where_it_was(
    scripts: Scripts, places: Places, keys: Keys, high: str, verb: str
) -> None:
    push(places.client, high, job(1))
    entry = fetch(scripts, high)
    for name in (keys.completed, keys.dead_letter, keys.delayed(high), high):
        places.client.set(name, "not a list")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        VERBS[verb](scripts, high)
    assert places.processing() == {W1: [entry]}
    # And it can be ended once that is mended.
    places.client.delete(keys.completed, keys.dead_letter, keys.delayed(high), high)
    assert VERBS[verb](scripts, high) is True


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_can_be_ended_when_redis_has_no_memory_left(
    scripts: Scripts, places: Places, high: str, verb: str
) -> None:
    push(places.client, high, job(1), job(2))
    fetch(scripts, high)
    places.client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        scripts.fetch(W2, [high])
    assert VERBS[verb](scripts, high) is True
    assert len(places.everything()) == 2


def test_a_reaper_can_work_when_redis_has_no_memory_left(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    push(places.client, high, job(1))
    entry = fetch(scripts, high)
    places.be_late(W1)
    places.client.config_set("maxmemory", 1)
    assert scripts.take_back(W1, [verdict(entry, W1, keys, max_retries=3)]) == [Taking.TAKEN]
    assert scripts.seen("some server", anew=False) == (0, 0)


def test_nothing_is_taken_from_a_worker_with_a_heartbeat(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    push(places.client, high, job(1))
    entry = fetch(scripts, high)
    assert scripts.take_back(W1, [verdict(entry, W1, keys, max_retries=3)]) is None
    assert places.processing() == {W1: [entry]}


def test_a_heartbeat_in_the_last_moment_counts(scripts: Scripts, places: Places, high: str) -> None:
    push(places.client, high, job(1))
    fetch(scripts, high)
    places.be_late(W1)
    assert scripts.renew([W2, W1]) == [0, 1]
    assert scripts.take_back(W1, []) is None


def test_each_entry_is_taken_back_once(
    scripts: Scripts, places: Places, keys: Keys, high: str
) -> None:
    """Two reapers have read the same list; a foreign worker had put several jobs into it."""
    entries = [job(number).encode() for number in range(3)]
    places.client.lpush(keys.processing(W1), *entries)
    moves = [verdict(entry, W1, keys, max_retries=3) for entry in entries]
    assert scripts.take_back(W1, moves[:2]) == [Taking.TAKEN] * 2
    assert scripts.take_back(W1, moves) == [Taking.GONE, Taking.GONE, Taking.TAKEN]
    assert places.count() == {f"job-{number}": 1 for number in range(3)}


def test_a_refused_entry_stays_in_the_list_and_the_others_go(
    scripts: Scripts, places: Places, keys: Keys, high: str, low: str
) -> None:
    places.client.set(high, "not a list")
    entries = [job(1, origin_queue=high).encode(), job(2, origin_queue=low).encode()]
    places.client.lpush(keys.processing(W1), *entries)
    moves = [verdict(entry, W1, keys, max_retries=3) for entry in entries]
    assert scripts.take_back(W1, moves) == [Taking.REFUSED, Taking.TAKEN]
    assert places.processing() == {W1: entries[:1]}
    assert places.queue("low") == [replace(job(2), retries=1, origin_queue=low).encode()]


def test_scripts_are_loaded_again_by_a_server_that_forgot_them(
    scripts: Scripts, places: Places, high: str
) -> None:
    push(places.client, high, job(1), job(2))
    fetch(scripts, high)
    places.client.script_flush()
    assert scripts.complete(W1, 1, job(1).encode())


def test_servers_before_lmove_are_served(scripts: Scripts, places: Places, high: str) -> None:
    scripts._version = (5, 0, 14)
    push(places.client, high, job(1), job(2))
    assert fetch(scripts, high) == job(1).encode()
    fetched = scripts.wait(W2, high, 0.2)
    assert fetched is not None
    assert fetched.entry == job(2).encode()
    assert scripts.wait("w3", high, 0.2) is None


def test_hostile_entries_go_through_unharmed(
    scripts: Scripts, places: Places, high: str, config: Config
) -> None:
    hostile = [
        b"",
        b"\0\r\n$5\r\n",
        bytes(range(256)),
        b"x" * 5_000_000,
        b"[" * 100_000,
        b"ended:1",
    ]
    places.client.lpush(high, *hostile)
    with connect(config) as other:
        mine = Scripts(other, places.keys, ttl=5)
        for number, entry in enumerate(hostile):
            assert fetch(mine, high) == entry
            assert mine.complete(W1, number, entry)
    assert places.completed() == hostile
