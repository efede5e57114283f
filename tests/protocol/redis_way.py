"""The Redis queue as a way into the protocol: a real slot of a worker whose handler does what the
test says, the real reaper, and a foreign client that looks at the lists.
"""

import atexit
import queue
import secrets
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobreaper.models import JobEvent
from jobreaper.redisq import events, signals
from jobreaper.redisq.breaker import Breaker
from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.moves import Move
from jobreaper.redisq.pulse import Pulse
from jobreaper.redisq.reaper import Reaper
from jobreaper.redisq.scripts import Scripts
from jobreaper.redisq.slot import Slot
from tests.protocol.ways import TERMINAL_EVENTS, JobState, Way
from tests.redisq.places import Places
from tests.redisq.redis_place import redis_place
from tests.redisq.servers import INSTALLED, Server

_servers: dict[str, Server] = {}


def installed_server() -> dict[str, Any]:
    """The place of the Redis that this machine has, running until this process ends."""
    if INSTALLED is None:
        raise LookupError("this machine has no Redis of its own")
    if INSTALLED not in _servers:
        home = Path(tempfile.mkdtemp(prefix="jobreaper-"))
        server = _servers[INSTALLED] = Server(home, INSTALLED)
        server.start()
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        atexit.register(server.kill)
    return {"addr": str(_servers[INSTALLED].socket)}


@dataclass
class Running:
    """A job that a slot has fetched. Its handler waits for how it is to end."""

    slot: Slot
    thread: threading.Thread
    ending: queue.SimpleQueue[BaseException | None]

    def end(self, error: BaseException | None) -> None:
        self.ending.put(error)
        self.thread.join(30)
        assert not self.thread.is_alive()


class RedisLists(Way):
    """A key is a job's id."""

    # The list that has the entry is the fence, and a lost job goes straight back to its queue.
    has_epochs = False
    lost_jobs_wait = False

    def __init__(self, place: dict[str, Any] | None = None) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self.place = place or redis_place()
        self.config = self._configured(3)
        self.keys = Keys.of(self.config)
        self.client: Any = connect(self.config)
        self.scripts = Scripts(self.client, self.keys, ttl=self.config.worker.heartbeat_ttl)
        self.places = Places(self.client, self.keys)
        self.running: list[Running] = []
        self.names = 0

    def _configured(self, max_attempts: int) -> Config:
        worker = {
            "heartbeat_ttl": "300s",
            "brpoplpush_timeout": "10ms",
            "max_retries": max_attempts - 1,
            "backoff": {"base": "60s", "max": "60s"},
            "priorities": ["high"],
            "queues": {"high": f"{self.prefix}:high"},
            "processing_list_pattern": f"{self.prefix}:%s:processing",
            "heartbeat_key_pattern": f"{self.prefix}:%s:beat",
            "completed_list": f"{self.prefix}:completed",
            "dead_letter_list": f"{self.prefix}:dead",
        }
        producer = {"default_priority": "high", "rate_limit_key": f"{self.prefix}:rate"}
        return from_document({"redis": self.place, "worker": worker, "producer": producer})

    @property
    def queue(self) -> str:
        return self.keys.queues["high"]

    def add(self, *, max_attempts: int = 3) -> str:
        self.config = self._configured(max_attempts)
        self.names += 1
        job = Job(id=f"{self.prefix}-{self.names}", filepath="/x", origin_queue=self.queue)
        self.client.lpush(self.queue, job.encode())
        return job.id

    def claim(self, key: str, worker: str) -> Running | None:
        begun = threading.Event()
        ending: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def handler(job: Job) -> None:
            begun.set()
            if (error := ending.get()) is not None:
                raise error

        self.names += 1
        breakers = {
            self.queue: Breaker(
                self.queue, failure_threshold=1, window=60, cooldown=60, min_samples=1000
            )
        }
        slot = Slot(
            f"{worker}-{self.names}",
            handler,
            self.scripts,
            breakers,
            self.config.worker,
            threading.Event(),
        )
        taken = slot._fetcher.next(threading.Event())
        if taken is None:
            return None
        thread = threading.Thread(target=slot._take_up, args=[taken], daemon=True)
        running = Running(slot, thread, ending)
        self.running.append(running)
        thread.start()
        assert begun.wait(30)
        return running

    def beat(self, held: Running) -> bool:
        run = held.slot.run
        assert run is not None
        Pulse(self.scripts, [held.slot], ttl=300)._renew()
        return not run.lost

    def finish(self, held: Running) -> bool:
        return self._end(held, lambda: held.end(None))

    def fail(self, held: Running) -> bool:
        return self._end(held, lambda: held.end(ValueError("went wrong")))

    def release(self, held: Running) -> bool:
        return self._end(held, held.slot.abandon)

    def _end(self, held: Running, verb: Any) -> bool:
        stale: list[str] = []

        def note(worker_id: str, verb: str, **_: Any) -> None:
            if worker_id == held.slot.worker_id:
                stale.append(verb)

        signals.stale_completion.connect(note)
        verb()
        signals.stale_completion.disconnect(note)
        return not stale

    def reap(self) -> dict[Any, str]:
        found: dict[Any, str] = {}

        def note(moves: list[Move], **_: Any) -> None:
            for move in moves:
                assert move.job is not None
                found[move.job.id] = "failed" if move.reason else "requeued"

        reaper = Reaper(self.config, self.client)
        signals.job_moved.connect(note)
        assert reaper.run_pass(hold=False, budget=60).errors == []
        signals.job_moved.disconnect(note)
        return found

    def cancel(self, key: str) -> None:
        """As an operator does with redis-cli."""
        worker_id, entry = self._holder(key)
        assert self.client.lrem(self.keys.processing(worker_id), 1, entry) == 1

    def requeue(self, key: str) -> None:
        worker_id, entry = self._holder(key)
        with self.client.pipeline() as pipe:
            pipe.lrem(self.keys.processing(worker_id), 1, entry)
            pipe.lpush(self.queue, entry)
            pipe.execute()

    def state(self, key: str) -> JobState:
        for worker_id, entries in self.places.processing().items():
            for job in map(parse, entries):
                if job.id == key:
                    return JobState("processing", worker_id, 0, job.retries + 1)
        for status, entries, ended in (
            ("queued", self.places.queue() + self.places.delayed(), False),
            ("success", self.places.completed(), True),
            ("failed", [letter.entry for letter in self.places.dead()], True),
        ):
            for job in map(parse, entries):
                if job.id == key:
                    return JobState(status, None, 0, job.retries + ended)
        return JobState("gone", None, 0, 0)

    def rejections(self, key: str) -> list[str]:
        return [str(e.details["verb"]) for e in self._events("job:stale_write_rejected", key)]

    def endings(self, key: str) -> int:
        return sum(len(self._events(kind, key)) for kind in TERMINAL_EVENTS)

    def _events(self, kind: str, key: str) -> list[JobEvent]:
        events.recorder.flush()
        return list(JobEvent.objects.filter(job_id=key, type=kind).order_by("id"))

    def let_time_pass(self, key: str, seconds: float) -> None:
        name = self.keys.heartbeat(self._holder(key)[0])
        remaining: Any = self.client.pttl(name)
        self.client.pexpire(name, round(remaining - seconds * 1000))

    def lapse(self, key: str) -> None:
        self.places.be_late(self._holder(key)[0])

    def make_due(self, key: str) -> None:
        self.places.make_due()
        self.scripts.promote()

    def give_to(self, key: str, worker: str) -> None:
        worker_id, _ = self._holder(key)
        self.scripts.renew([worker])
        self.client.lmove(
            self.keys.processing(worker_id), self.keys.processing(worker), "RIGHT", "LEFT"
        )

    def _holder(self, key: str) -> tuple[str, bytes]:
        [(worker_id, entry)] = [
            (worker_id, entry)
            for worker_id, entries in self.places.processing().items()
            for entry in entries
            if parse(entry).id == key
        ]
        return worker_id, entry

    def close(self) -> None:
        for running in self.running:
            if running.thread.is_alive():
                running.end(SystemExit())
        events.recorder.flush()
        names = list(self.client.scan_iter(f"{self.prefix}*", count=1000))
        if names:
            self.client.delete(*names)
        self.client.close()


REDIS_WAYS = {"Redis lists": lambda sql: RedisLists()} | (
    {"Redis lists, installed server": lambda sql: RedisLists(installed_server())}
    if INSTALLED
    else {}
)
