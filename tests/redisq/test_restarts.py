"""Redis is killed and comes back, with its data and without, while jobs run."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobreaper.redisq import signals
from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.reaper import Reaper
from jobreaper.redisq.worker import Worker
from tests.redisq import handlers
from tests.redisq.conftest import MakeDocument
from tests.redisq.places import Places, ids, job, push
from tests.redisq.servers import Server
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PATIENCE_SEC = 60


@pytest.fixture
def config(make_document: MakeDocument, server: Server) -> Config:
    document = make_document(redis={"addr": str(server.socket), "max_retries": 0})
    document["worker"] |= {"handler": "tests.redisq.handlers.handle", "count": 4}
    return from_document(document)


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    handlers.reset()
    return Places(client, keys)


@pytest.fixture
def worker(config: Config, places: Places) -> Iterator[Worker]:
    """A worker process, but for its process."""
    worker = Worker(config)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield worker
    handlers.go_on.set()
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    worker.client.close()


@pytest.fixture
def stale() -> Iterator[list[str]]:
    """The ids of jobs whose end was rejected."""
    found: list[str] = []

    def note(job: Any, **_: Any) -> None:
        found.append(job.id)

    signals.stale_completion.connect(note)
    yield found
    signals.stale_completion.disconnect(note)


def test_no_job_is_lost_or_ended_twice_when_redis_restarts_with_its_data(
    worker: Worker, server: Server, places: Places, keys: Keys, stale: list[str]
) -> None:
    names = range(1000)
    push(places.client, keys.queues["high"], *(job(number) for number in names))
    until(lambda: len(places.completed()) > 300, PATIENCE_SEC)
    server.restart(with_data=True)
    until(lambda: len(places.completed()) > 600, PATIENCE_SEC)
    server.restart(with_data=True)
    until(lambda: len(places.completed()) == len(names), PATIENCE_SEC)
    assert places.count() == {f"job-{number}": 1 for number in names}
    assert stale == []


def test_a_worker_goes_on_when_redis_has_lost_everything(
    worker: Worker, server: Server, places: Places, keys: Keys, stale: list[str]
) -> None:
    """Its heartbeats, its scripts and the job in its hands are gone."""
    push(places.client, keys.queues["high"], job("lost", extra={"do": "wait"}))
    until(lambda: handlers.started, PATIENCE_SEC)
    server.restart(with_data=False)
    push(places.client, keys.queues["high"], job("new"))
    until(places.completed, PATIENCE_SEC)
    handlers.go_on.set()
    until(lambda: stale, PATIENCE_SEC)
    assert stale == ["job-lost"]
    assert places.count() == {"job-new": 1}
    names = [keys.heartbeat(each) for each in worker.worker_ids]
    until(lambda: places.client.exists(*names) == len(names), PATIENCE_SEC)


def test_no_healthy_job_is_reaped_after_an_outage_longer_than_its_heartbeat(
    worker: Worker,
    server: Server,
    places: Places,
    keys: Keys,
    config: Config,
    stale: list[str],
) -> None:
    push(places.client, keys.queues["high"], job(1, extra={"do": "wait"}))
    until(lambda: handlers.started, PATIENCE_SEC)
    [holder] = places.processing()
    reaper = Reaper(config)
    reaper.run_pass(budget=PATIENCE_SEC)
    server.kill()
    with pytest.raises(redis.RedisError):
        reaper.run_pass(budget=PATIENCE_SEC)
    server.start()
    # What the time that has passed would have done.
    places.be_late(holder)
    first = reaper.run_pass(budget=PATIENCE_SEC)
    assert first.held or places.client.exists(keys.heartbeat(holder))
    until(lambda: places.client.exists(keys.heartbeat(holder)), PATIENCE_SEC)
    until(lambda: not reaper.run_pass(budget=PATIENCE_SEC).held, PATIENCE_SEC, every_sec=0.2)
    reaper.client.close()
    assert places.processing().keys() == {holder}
    handlers.go_on.set()
    until(places.completed, PATIENCE_SEC)
    assert stale == []
    assert ids(places.completed()) == {"job-1": 1}


def test_jobs_that_wait_for_their_retry_survive_a_restart(
    worker: Worker, server: Server, places: Places, keys: Keys
) -> None:
    push(places.client, keys.queues["high"], job(1, extra={"do": "fail"}))
    until(places.delayed, PATIENCE_SEC)
    server.restart(with_data=True)
    until(places.dead, PATIENCE_SEC)
    assert handlers.started == ["job-1"] * 4


TROUBLES = {
    "READONLY": (
        lambda client: client.replicaof("127.0.0.1", 1),
        lambda client: client.replicaof("NO", "ONE"),
    ),
    "maxmemory": (
        lambda client: client.config_set("maxmemory", 1),
        lambda client: client.config_set("maxmemory", 0),
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_jobs_go_on_after_a_server_that_refused_to_write(
    trouble: str, worker: Worker, places: Places, keys: Keys, stale: list[str]
) -> None:
    """A failover made it a replica for a while, or it had no memory left."""
    refused = threading.Event()

    def note(error: Exception, **_: Any) -> None:
        if trouble in str(error):
            refused.set()

    begin, end = TROUBLES[trouble]
    push(places.client, keys.queues["high"], job(1, extra={"do": "wait"}))
    until(lambda: handlers.started, PATIENCE_SEC)
    push(places.client, keys.queues["low"], *(job(number) for number in range(2, 200)))
    signals.redis_failed.connect(note)
    begin(places.client)
    assert refused.wait(PATIENCE_SEC)
    handlers.go_on.set()
    end(places.client)
    until(lambda: len(places.completed()) == 199, PATIENCE_SEC)
    signals.redis_failed.disconnect(note)
    assert stale == []
    assert set(places.count().values()) == {1}


@pytest.mark.slow
def test_two_reapers_share_50_000_jobs_of_dead_workers(
    config: Config, places: Places, keys: Keys, make_document: Callable[..., dict[str, Any]]
) -> None:
    names = [f"job-{worker}-{number}" for worker in range(100) for number in range(500)]
    for worker in range(100):
        entries = [job(f"{worker}-{number}", priority="high").encode() for number in range(500)]
        places.client.lpush(keys.processing(f"dead-{worker}"), *entries)
    moved: list[str] = []

    def note(moves: Any, **_: Any) -> None:
        moved.extend(move.job.id for move in moves)

    reapers = [Reaper(config), Reaper(config)]
    results: list[Any] = []

    def reap(reaper: Reaper) -> None:
        results.append(reaper.run_pass(hold=False, budget=PATIENCE_SEC))

    signals.job_moved.connect(note)
    threads = [threading.Thread(target=reap, args=[reaper]) for reaper in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    signals.job_moved.disconnect(note)
    for reaper in reapers:
        reaper.client.close()
    assert all(result.whole and result.errors == [] for result in results)
    assert all(result.requeued > 1000 for result in results)
    assert sorted(moved) == sorted(names)
    assert places.processing() == {}
    assert ids(places.queue("high")) == dict.fromkeys(names, 1)
