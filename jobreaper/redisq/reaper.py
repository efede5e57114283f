"""The reaper of the Redis queue: takes jobs back from the lists of workers without a heartbeat.

It goes over the processing lists with SCAN, a page at a time. A pass ends when it has gone round,
or when its budget is spent; the next one, in whichever process, resumes where it stopped. Any
number of reapers may run at once: whether a worker is dead, and whether an entry is still in its
list, is decided in the script that moves the entry.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import redis

from jobreaper.identity import local_clock, worker_id
from jobreaper.redisq import signals
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.hold import Hold
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.moves import Move, verdict
from jobreaper.redisq.results import PassResult
from jobreaper.redisq.scripts import Scripts, Taking
from jobreaper.redisq.trouble import Trouble

if TYPE_CHECKING:
    from jobreaper.redisq.config import Config

# Entries of a long list that are moved by one script, which nothing can interrupt.
CHUNK: Final = 100

# Reapers that were started together must not scan together.
PAGE_JITTER: Final = 0.5
INTERVAL_JITTER: Final = 0.25


class Reaper:
    """Takes jobs back from dead workers, pass by pass."""

    def __init__(self, config: Config, client: redis.Redis | None = None) -> None:
        self.client = client or connect(config)
        self.keys = Keys.of(config)
        self.name = worker_id()
        self._config = config
        self._scripts = Scripts(self.client, self.keys, ttl=config.worker.heartbeat_ttl)
        self._hold = Hold(
            self._scripts,
            grace=config.worker.heartbeat_ttl,
            usual_gap=config.reaper.interval * (1 + INTERVAL_JITTER),
        )

    def run(self, stop: threading.Event) -> None:
        """Run passes until ``stop`` is set, ``reaper.interval`` apart."""
        trouble = Trouble(self.client, self.name, longest=self._config.reaper.interval)
        while not stop.is_set():
            try:
                self.run_pass(stop=stop)
            # Whatever it is, the next pass may succeed, and nothing else would reap.
            except Exception as error:
                self._hold.begin_anew()
                trouble.wait("reap", error, stop)
                continue
            trouble.over()
            stop.wait(jittered(self._config.reaper.interval, INTERVAL_JITTER))

    def run_pass(
        self,
        *,
        hold: bool = True,
        budget: float | None = None,
        stop: threading.Event | None = None,
    ) -> PassResult:
        """Run one pass of ``budget`` seconds, by default ``reaper.pass_budget``, but of at least
        one page or chunk. With ``hold`` false, do not wait for workers after a restart.

        Raises:
            redis.RedisError: the server does not answer, or refuses. What was moved is moved.
        """
        began = local_clock()
        limit = self._config.reaper.pass_budget if budget is None else budget
        result = PassResult()
        self._promote(result)
        reason, cursor = self._hold.look()
        if reason is not None and hold:
            result.held_reason = reason
        else:
            self._go_round(result, cursor, began + limit, stop or threading.Event())
        self._hold.passed()
        result.duration_ms = (local_clock() - began) * 1000
        signals.pass_finished.send_robust(sender=Reaper, result=result)
        return result

    def _promote(self, result: PassResult) -> None:
        try:
            result.promoted = self._scripts.promote()
        except redis.ReadOnlyError:
            raise
        # A queue that is no list keeps its delayed jobs, and stops nothing else.
        except redis.ResponseError as error:
            result.errors.append(str(error))

    def _go_round(
        self, result: PassResult, cursor: int, deadline: float, stop: threading.Event
    ) -> None:
        while True:
            following, workers = self._page(cursor)
            for dead in self._without_heartbeat(workers):
                for moved in self._empty(dead, result):
                    self._report(moved, result)
                    # Where nothing could be moved, the next pass must not begin again.
                    if moved and (stop.is_set() or local_clock() >= deadline):
                        # This page once more: what is done is no longer in it.
                        self._scripts.keep_cursor(cursor)
                        return
            cursor = following
            if cursor == 0:
                result.whole = True
                break
            if stop.is_set() or local_clock() >= deadline:
                break
            stop.wait(jittered(self._config.reaper.base_delay, PAGE_JITTER))
        self._scripts.keep_cursor(cursor)

    def _page(self, cursor: int) -> tuple[int, list[str]]:
        found: Any = self.client.scan(
            cursor, match=self.keys.processing_glob, count=self._config.reaper.scan_count
        )
        following, keys = found
        # A name that is not UTF-8 is no worker's of ours, and could not be named in a letter.
        named = [key.decode() for key in keys if key.isascii()]
        workers = [worker for key in named if (worker := self.keys.worker_of(key)) is not None]
        # SCAN may return a key twice.
        return int(following), list(dict.fromkeys(workers))

    def _without_heartbeat(self, workers: Sequence[str]) -> Iterator[str]:
        if not workers:
            return
        with self.client.pipeline(transaction=False) as asked:
            for worker in workers:
                asked.exists(self.keys.heartbeat(worker))
                asked.type(self.keys.processing(worker))
            answers = asked.execute()
        for worker, alive, kind in zip(workers, answers[::2], answers[1::2], strict=True):
            if not alive and kind == b"list":
                yield worker

    def _empty(self, dead: str, result: PassResult) -> Iterator[list[Move]]:
        """Move everything out of the list of a dead worker; yield what was moved, by chunks."""
        processing = self.keys.processing(dead)
        limit = self._config.worker.max_retries
        while True:
            entries: Any = self.client.lrange(processing, -CHUNK, -1)
            if not entries:
                return
            # The oldest first.
            moves = [
                verdict(entry, dead, self.keys, max_retries=limit) for entry in reversed(entries)
            ]
            taken = self._scripts.take_back(dead, moves)
            if taken is None:
                return
            yield [m for m, each in zip(moves, taken, strict=True) if each is Taking.TAKEN]
            refused = {
                m.target for m, each in zip(moves, taken, strict=True) if each is Taking.REFUSED
            }
            if refused:
                result.errors += [f"{target} is not a list" for target in sorted(refused)]
                return

    def _report(self, moved: Sequence[Move], result: PassResult) -> None:
        if not moved:
            return
        dead = sum(bool(move.reason) for move in moved)
        result.dead_lettered += dead
        result.requeued += len(moved) - dead
        signals.job_moved.send_robust(sender=Reaper, moves=moved, reaper=self.name)


def jittered(seconds: float, share: float) -> float:
    """Return ``seconds``, up to ``share`` of it more or less."""
    return seconds * random.uniform(1 - share, 1 + share)
