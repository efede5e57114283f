"""The reaper: what it takes back, and when it waits."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobreaper.redisq import signals
from jobreaper.redisq.config import Config
from jobreaper.redisq.hold import Hold
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.moves import Move
from jobreaper.redisq.reaper import Reaper, jittered
from jobreaper.redisq.results import PassResult
from jobreaper.redisq.scripts import Scripts
from tests.redisq.places import Places, ids, job, push
from tests.waiting import until


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


@pytest.fixture
def config(make_config: Callable[..., Config], make_document: Any) -> Config:
    """Heartbeats that last longer than a test."""
    return make_config(worker=make_document()["worker"] | {"heartbeat_ttl": "60s"})


@pytest.fixture
def reaper(config: Config) -> Iterator[Reaper]:
    reaper = Reaper(config)
    yield reaper
    reaper.client.close()


@pytest.fixture
def moves() -> Iterator[list[Move]]:
    """What reapers say that they moved."""
    found: list[Move] = []

    def note(moves: list[Move], **_: Any) -> None:
        found.extend(moves)

    signals.job_moved.connect(note)
    yield found
    signals.job_moved.disconnect(note)


def leave(places: Places, worker: str, *entries: bytes) -> None:
    """Let a worker die with these in its list."""
    places.client.lpush(places.keys.processing(worker), *entries)


def reap(reaper: Reaper) -> dict[str, int]:
    """Run a pass to the end, however many other keys there are."""
    result = reaper.run_pass(hold=False, budget=60)
    assert result.whole
    assert result.errors == []
    return {"requeued": result.requeued, "dead_lettered": result.dead_lettered}


def test_a_job_of_a_dead_worker_goes_back_to_its_queue_with_one_retry_more(
    reaper: Reaper, places: Places, keys: Keys, moves: list[Move]
) -> None:
    low = keys.queues["low"]
    leave(places, "dead", job(1, origin_queue=low, extra={"more": [1]}).encode())
    assert reap(reaper) == {"requeued": 1, "dead_lettered": 0}
    assert places.everything() == places.queue("low")
    expected = job(1, origin_queue=low, retries=1, extra={"more": [1]})
    assert places.queue("low") == [expected.encode()]
    assert [(move.worker_id, move.queue, move.reason) for move in moves] == [("dead", low, "")]
    assert reap(reaper) == {"requeued": 0, "dead_lettered": 0}


def test_a_worker_with_a_heartbeat_keeps_its_job(
    reaper: Reaper, scripts: Scripts, places: Places, keys: Keys
) -> None:
    push(places.client, keys.queues["high"], job(1))
    scripts.fetch("alive", [keys.queues["high"]])
    leave(places, "dead", job(2).encode())
    assert reap(reaper) == {"requeued": 1, "dead_lettered": 0}
    assert places.processing() == {"alive": [job(1).encode()]}


def test_a_job_without_retries_left_is_a_dead_letter(
    reaper: Reaper, places: Places, keys: Keys
) -> None:
    high = keys.queues["high"]
    leave(places, "dead", job(1, retries=3, origin_queue=high).encode())
    assert reap(reaper) == {"requeued": 0, "dead_lettered": 1}
    [letter] = places.dead()
    assert (letter.reason, letter.queue, letter.worker_id) == ("worker_lost", high, "dead")
    assert letter.job == job(1, retries=3, origin_queue=high)


@pytest.mark.parametrize(
    "entry",
    [b"", b"\xff\0", b"[" * 100_000, b'{"id":"a","filepath":"b","more":1e999}', b"x" * 2_000_000],
    ids=["empty", "binary", "deep", "infinite", "huge"],
)
def test_a_malformed_entry_is_a_dead_letter(reaper: Reaper, places: Places, entry: bytes) -> None:
    leave(places, "dead", entry, job(1).encode())
    assert reap(reaper) == {"requeued": 1, "dead_lettered": 1}
    [letter] = places.dead()
    assert (letter.entry, letter.reason) == (entry, "malformed")


@pytest.mark.parametrize("origin", ["", "somebody-elses-key", "jobqueue:completed"])
def test_a_job_whose_origin_is_no_queue_goes_to_that_of_its_priority(
    reaper: Reaper, places: Places, origin: str
) -> None:
    leave(places, "dead", job(1, priority="high", origin_queue=origin).encode())
    leave(places, "too", job(2, priority="none", origin_queue=origin).encode())
    assert reap(reaper) == {"requeued": 2, "dead_lettered": 0}
    assert ids(places.queue("high")) == {"job-1": 1}
    assert ids(places.queue("low")) == {"job-2": 1}


def test_keys_that_only_look_like_a_processing_list_are_left_alone(
    reaper: Reaper, places: Places, keys: Keys
) -> None:
    places.client.set(keys.processing("text"), "x")
    places.client.sadd(keys.processing("set"), "x")
    places.client.lpush(keys.processing("dead").encode() + b"\xff", "x")
    leave(places, "dead", job(1).encode())
    assert reap(reaper) == {"requeued": 1, "dead_lettered": 0}
    assert places.client.exists(keys.processing("text"), keys.processing("set")) == 2


def test_due_delayed_jobs_are_moved_even_without_a_worker(
    reaper: Reaper, places: Places, keys: Keys
) -> None:
    places.client.zadd(keys.delayed(keys.queues["high"]), {b"t|" + job(1).encode(): 0})
    assert reaper.run_pass().promoted == 1
    assert places.queue() == [job(1).encode()]


def test_a_queue_that_is_no_list_stops_nothing_else(
    reaper: Reaper, places: Places, keys: Keys
) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    places.client.set(high, "not a list")
    places.client.zadd(keys.delayed(high), {b"t|" + job(0).encode(): 0})
    leave(places, "one", job(1, origin_queue=high).encode())
    leave(places, "two", job(2, origin_queue=low).encode())
    result = reaper.run_pass(hold=False, budget=60)
    assert (result.whole, result.requeued) == (True, 1)
    assert f"{high} is not a list" in result.errors
    assert any("WRONGTYPE" in error for error in result.errors)
    places.client.delete(high)
    reap(reaper)
    assert places.count() == {"job-0": 1, "job-1": 1, "job-2": 1}


def test_a_pass_stops_when_its_budget_is_spent_and_the_next_resumes(
    config: Config, places: Places
) -> None:
    """Each pass is of another process, as with `manage.py reap`."""
    for number in range(20):
        leave(places, f"dead-{number}", *(job(f"{number}-{n}").encode() for n in range(150)))
    passes: list[PassResult] = []
    while not passes or places.processing():
        reaper = Reaper(config)
        passes.append(reaper.run_pass(hold=False, budget=0))
        reaper.client.close()
    assert all(result.requeued <= 100 for result in passes)
    assert len(passes) >= 30
    assert sum(result.requeued for result in passes) == 3000
    assert set(places.count().values()) == {1}
    assert len(places.count()) == 3000


def test_other_keys_are_passed_over_a_page_at_a_time(
    make_config: Callable[..., Config], places: Places, prefix: str
) -> None:
    with places.client.pipeline() as pipe:
        for number in range(3000):
            pipe.set(f"{prefix}-other-{number}", "")
        pipe.execute()
    leave(places, "dead", job(1).encode())
    reaper = Reaper(make_config(reaper={"base_delay": "0", "scan_count": 50}))
    pages = 0
    while not places.queue("low"):
        assert reaper.run_pass(hold=False, budget=0).whole in (True, False)
        pages += 1
        assert pages < 1000
    reaper.client.close()


def test_jitter_stays_within_its_share() -> None:
    random.seed(1)
    waits = [jittered(10, 0.25) for _ in range(1000)]
    assert 7.5 <= min(waits) < 8
    assert 12 < max(waits) <= 12.5


def test_the_loop_reaps_until_it_is_told_to_stop(
    make_config: Callable[..., Config], places: Places, scripts: Scripts
) -> None:
    # As if reapers had known this server for long.
    know(scripts, 3600)
    reaper = Reaper(make_config(reaper={"interval": "50ms"}))
    stop = threading.Event()
    thread = threading.Thread(target=reaper.run, args=[stop])
    thread.start()
    for number in range(3):
        leave(places, "dead", job(number).encode())
        until(lambda: not places.processing())
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert len(places.queue("low")) == 3


# When it waits.


def know(scripts: Scripts, seconds: float) -> None:
    """Let reapers have known the server for this long."""
    client: Any = scripts.client
    now, _ = client.time()
    name = scripts.keys.named("reaper")
    run_id = client.info("server")["run_id"]
    since = int((now - seconds) * 1000)
    client.hset(name, mapping={"run_id": run_id, "since_ms": since, "cursor": 0})


@pytest.fixture
def held(places: Places, reaper: Reaper) -> Callable[[], str | None]:
    """Run a pass; return why it was held."""
    leave(places, "dead", job(1).encode())

    def look() -> str | None:
        result = reaper.run_pass(budget=60)
        assert bool(places.processing()) == result.held
        return result.held_reason

    return look


def test_nothing_is_taken_from_workers_that_had_no_time_to_send_a_heartbeat(
    held: Callable[[], str | None], scripts: Scripts
) -> None:
    assert "less than 60 s ago: workers have" in (held() or "")
    know(scripts, 20)
    assert held()
    know(scripts, 61)
    assert held() is None


def test_a_restart_or_a_failover_begins_the_grace_again(
    held: Callable[[], str | None], scripts: Scripts, places: Places
) -> None:
    know(scripts, 3600)
    places.client.hset(scripts.keys.named("reaper"), "run_id", "that of the server before")
    assert held()
    assert held()


def test_data_that_was_lost_begins_the_grace_again(
    held: Callable[[], str | None], scripts: Scripts, places: Places
) -> None:
    know(scripts, 3600)
    places.client.delete(scripts.keys.named("reaper"))
    assert held()


def test_a_clock_that_was_set_back_begins_the_grace_again(
    held: Callable[[], str | None], scripts: Scripts
) -> None:
    know(scripts, -3600)
    assert held()
    know(scripts, 3600)
    assert held() is None


def test_a_reaper_that_could_not_reach_redis_begins_the_grace_again(
    held: Callable[[], str | None], scripts: Scripts, reaper: Reaper
) -> None:
    know(scripts, 3600)
    reaper._hold.begin_anew()
    assert held()
    know(scripts, 3600)
    assert held() is None


def test_a_reaper_that_slept_for_long_begins_the_grace_again(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended, and so were workers: their heartbeats ran out meanwhile."""
    now = 1000.0
    monkeypatch.setattr("jobreaper.redisq.hold.local_clock", lambda: now)
    hold = Hold(scripts, grace=5, usual_gap=10)
    know(scripts, 3600)
    assert hold.look()[0] is None
    hold.passed()
    now += 11
    assert hold.look()[0] is None
    hold.passed()
    now += 12
    assert hold.look()[0] is not None
