"""Workers and reapers that are killed at every step: no job is lost, none is ended twice."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.reaper import Reaper
from tests.redisq import zygote
from tests.redisq.conftest import MakeDocument, running
from tests.redisq.cutting import AFTER, BEFORE, Cut
from tests.redisq.places import Places, job, push
from tests.redisq.servers import Server, programs
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SEC = 30
JOBS = 30

Spawn = Callable[..., int]


@pytest.fixture(scope="module")
def spawn() -> Iterator[Spawn]:
    """Start a process of the Redis queue; return its id. All are gone at the end."""
    pids: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.redisq.zygote"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.redisq.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdin is not None
        assert maker.stdout is not None
        assert maker.stdout.readline().strip() == zygote.READY

        def start(role: str, document: dict[str, Any], **options: Any) -> int:
            print(
                json.dumps([role, {"document": document, **options}]), file=maker.stdin, flush=True
            )
            assert maker.stdout is not None
            pids.append(int(maker.stdout.readline()))
            return pids[-1]

        yield start
        for pid in pids:
            kill(pid)


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    with running(programs()["embedded"]) as server:
        yield server


@pytest.fixture
def document(make_document: MakeDocument, module_server: Server) -> dict[str, Any]:
    document = make_document(redis={"addr": str(module_server.socket), "max_retries": 0})
    document["worker"] |= {
        "handler": "tests.redisq.zygote.handle",
        "backoff": {"base": "10ms", "max": "20ms"},
        "max_retries": 5,
    }
    # Many jobs here fail on purpose.
    document["circuit_breaker"] = {"min_samples": 1_000_000}
    return document


@pytest.fixture
def config(document: dict[str, Any]) -> Config:
    return from_document(document)


@pytest.fixture
def places(client: redis.Redis, keys: Keys) -> Places:
    return Places(client, keys)


def kill(pid: int, with_signal: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, with_signal)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def end(pid: int) -> None:
    """Let a worker end as on a deploy."""
    kill(pid, signal.SIGTERM)
    until(lambda: is_gone(pid), PATIENCE_SEC)


class Ledger:
    """What handlers did: how often each attempt of each job began."""

    def __init__(self, places: Places, server: Server, prefix: str) -> None:
        self.client = places.client
        self.name = f"{prefix}:ledger"
        self.until = f"{prefix}:until"
        number = places.client.get_connection_kwargs().get("db", 0)
        self.extra = {"at": str(server.socket), "db": number, "ledger": self.name}

    def attempts(self) -> Counter[str]:
        return Counter(entry.decode() for entry in self.client.lrange(self.name, 0, -1))


@pytest.fixture
def ledger(places: Places, module_server: Server, prefix: str) -> Ledger:
    return Ledger(places, module_server, prefix)


def push_jobs(places: Places, ledger: Ledger) -> None:
    """Jobs of both queues, of which some fail once and some for good."""
    for number in range(JOBS):
        fails = {3: 1, 4: 99}.get(number % 5, 0)
        queue = places.keys.queues[("high", "low")[number % 2]]
        push(places.client, queue, job(number, extra=ledger.extra | {"fails": fails}))


def reap(config: Config, places: Places) -> int:
    """Let the heartbeats of the dead run out, and run a pass."""
    for worker_id in places.processing():
        places.be_late(worker_id)
    reaper = Reaper(config)
    result = reaper.run_pass(hold=False, budget=PATIENCE_SEC)
    reaper.client.close()
    assert result.errors == []
    return result.requeued + result.dead_lettered


def is_all_ended(places: Places) -> bool:
    return len(places.completed()) + len(places.dead()) >= JOBS


STEPS = ["fetch", "BLMOVE", "begin", "complete", "fail", "renew", "promote"]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_any_step_loses_no_job_and_ends_none_twice(
    step: str,
    when: str,
    spawn: Spawn,
    document: dict[str, Any],
    config: Config,
    places: Places,
    ledger: Ledger,
    module_server: Server,
    tmp_path: Path,
) -> None:
    path = module_server.home / f"{step}-{when}.sock"
    # The first two of a script load it, and the last of them may be at the very start.
    cut = Cut(path, module_server.socket, step, when, nth=3)
    if step in ("BLMOVE", "begin"):
        # Wait for work first.
        cut.remaining = 1 if step == "begin" else 3
    elif step != "renew":
        push_jobs(places, ledger)
    victim = spawn("work", document | {"redis": document["redis"] | {"addr": str(path)}})
    cut.kill = lambda: kill(victim)
    if step in ("BLMOVE", "begin"):
        until(lambda: places.client.exists(*beats(places)) or cut.done.is_set(), PATIENCE_SEC)
        push_jobs(places, ledger)
    elif step == "renew":
        push_jobs(places, ledger)
    assert cut.done.wait(PATIENCE_SEC)
    until(lambda: is_gone(victim), PATIENCE_SEC)
    cut.close()
    assert set(places.count().values()) == {1}
    assert len(places.count()) == JOBS
    held = [entry for entries in places.processing().values() for entry in entries]
    assert len(held) <= config.worker.count

    assert reap(config, places) == len(held)
    assert reap(config, places) == 0
    heir = spawn("work", document)
    until(lambda: is_all_ended(places), PATIENCE_SEC)
    end(heir)
    check_the_books(places, ledger, lost=len(held))


def beats(places: Places) -> list[bytes]:
    found = list(places.client.scan_iter(places.keys.heartbeat_glob))
    return found or [b"none yet"]


def check_the_books(places: Places, ledger: Ledger, *, lost: int) -> None:
    """Every job has ended once, as it should, and only what was in a dead worker's hands began
    more often than it had to.
    """
    expected = {f"job-{number}": number % 5 for number in range(JOBS)}
    ended = places.count()
    assert ended == dict.fromkeys(expected, 1)
    assert {letter.job.id for letter in places.dead() if letter.job} == {
        name for name, kind in expected.items() if kind == 4
    }
    began = Counter(name.split()[0] for name in ledger.attempts().elements())
    needed = {name: {3: 2, 4: 6}.get(kind, 1) for name, kind in expected.items()}
    # A job that fails for good may have lost one of its retries to a dead worker.
    more = sum(max(0, began[name] - count) for name, count in needed.items())
    fewer = {name for name, count in needed.items() if began[name] < count}
    assert more <= lost
    assert len(fewer) <= lost
    assert all(expected[name] >= 3 for name in fewer)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_worker_killed_while_it_gives_a_job_back(
    when: str,
    spawn: Spawn,
    document: dict[str, Any],
    config: Config,
    places: Places,
    ledger: Ledger,
    module_server: Server,
) -> None:
    path = module_server.home / f"release-{when}.sock"
    cut = Cut(path, module_server.socket, "release", when)
    extra = ledger.extra | {"until": ledger.until}
    push(places.client, places.keys.queues["high"], job(1, extra=extra))
    victim = spawn(
        "work", document | {"redis": document["redis"] | {"addr": str(path)}}, drain_sec=0.1
    )
    cut.kill = lambda: kill(victim)
    until(ledger.attempts, PATIENCE_SEC)
    kill(victim, signal.SIGTERM)
    assert cut.done.wait(PATIENCE_SEC)
    until(lambda: is_gone(victim), PATIENCE_SEC)
    cut.close()
    assert places.count() == {"job-1": 1}
    assert reap(config, places) == (when == BEFORE)
    places.client.set(ledger.until, "now")
    heir = spawn("work", document)
    until(places.completed, PATIENCE_SEC)
    end(heir)
    assert places.count() == {"job-1": 1}


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("step", ["seen", "SCAN", "take_back", "HSET"])
def test_a_reaper_killed_at_any_step_is_no_harm_to_the_next(
    step: str,
    when: str,
    spawn: Spawn,
    document: dict[str, Any],
    config: Config,
    places: Places,
    module_server: Server,
) -> None:
    for number in range(5):
        entries = [job(f"{number}-{n}").encode() for n in range(250)]
        places.client.lpush(places.keys.processing(f"dead-{number}"), *entries)
    path = module_server.home / f"{step}-{when}.sock"
    cut = Cut(path, module_server.socket, step, when, nth=4 if step == "take_back" else 1)
    victim = spawn("reap", document | {"redis": document["redis"] | {"addr": str(path)}})
    cut.kill = lambda: kill(victim)
    assert cut.done.wait(PATIENCE_SEC)
    until(lambda: is_gone(victim), PATIENCE_SEC)
    cut.close()
    assert len(places.count()) == 1250
    reap(config, places)
    assert places.processing() == {}
    assert set(places.count().values()) == {1}
    assert len(places.queue("low")) == 1250


def test_a_frozen_worker_cannot_end_the_job_that_another_one_has(
    spawn: Spawn, document: dict[str, Any], config: Config, places: Places, ledger: Ledger
) -> None:
    extra = ledger.extra | {"until": ledger.until}
    push(places.client, places.keys.queues["high"], job(1, extra=extra))
    # One worker: what Redis gives to another one that waits in the frozen process is reaped later.
    alone = document | {"worker": document["worker"] | {"count": 1}}
    frozen = spawn("work", alone)
    until(ledger.attempts, PATIENCE_SEC)
    kill(frozen, signal.SIGSTOP)
    assert reap(config, places) == 1
    heir = spawn("work", document)
    until(lambda: ledger.attempts() == {"job-1 0": 1, "job-1 1": 1}, PATIENCE_SEC)
    # Both handlers are done now, and the frozen worker says so first.
    kill(heir, signal.SIGSTOP)
    places.client.set(ledger.until, "now")
    kill(frozen, signal.SIGCONT)
    end(frozen)
    assert places.completed() == []
    kill(heir, signal.SIGCONT)
    until(places.completed, PATIENCE_SEC)
    end(heir)
    assert places.count() == {"job-1": 1}
