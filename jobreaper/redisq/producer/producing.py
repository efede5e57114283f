"""The producer: scans, watches, and pushes a job for each file, until it is told to stop."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import redis

from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect, reach
from jobreaper.redisq.producer import signals
from jobreaper.redisq.producer.enqueueing import Enqueuer, batches
from jobreaper.redisq.producer.scanning import Found, Scanner, Skipped
from jobreaper.redisq.producer.watching import Watcher

T = TypeVar("T")

# All below are seconds. A file that was written to a moment ago may not be whole yet.
SETTLE: Final = 1.0
# After this long, reports that were lost are made good.
RESCAN: Final = 60.0
# Where the system reports nothing, this is how changes are seen.
RESCAN_UNWATCHED: Final = 5.0
# The share of its time that a producer may scan again what it has scanned.
SCAN_SHARE: Final = 0.1
# How often the producer says how far it is.
PROGRESS: Final = 1.0
# How often it looks whether it is to stop.
TICK: Final = 0.2
# Redis may restart meanwhile.
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 5.0

# Files of which it was told that they are skipped: not again at each scan.
_MOST_TOLD: Final = 100_000


@dataclass(kw_only=True)
class Tally:
    """How many files were ``found`` by the last scan, and how many were ``pushed`` as jobs and
    ``skipped`` since the start.
    """

    found: int = 0
    pushed: int = 0
    skipped: int = 0


class Producer:
    """One producer of any number.

    ``rescan_sec`` is how often the whole directory is scanned, beside what the system reports.

    Raises:
        ConfigurationError: the directory is none.
    """

    def __init__(self, config: Config, *, rescan_sec: float = RESCAN) -> None:
        self.tally = Tally()
        self._config = config
        self._client = connect(config)
        self._enqueuer = Enqueuer(self._client, config)
        self._scanner = Scanner(config.producer)
        self._rescan_sec = rescan_sec
        self._device = os.stat(self._scanner.root).st_dev
        self._stopping = threading.Event()
        self._told: set[Skipped] = set()
        # When each file that was being written is looked at again, on the monotonic clock.
        self._unsettled: dict[str, float] = {}
        self._next_progress = 0.0

    def stop(self) -> None:
        """Let ``run()`` return soon. For signal handlers and other threads."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> Tally:
        """Push a job for each file until ``stop()``, or, ``once``, for those that are there now.

        Raises:
            RedisUnreachable: Redis cannot be reached at the start. Later, it is waited for.
        """
        with self._client:
            reach(self._client, self._config)
            if once:
                self._scan()
                while self._unsettled and not self._stopping.wait(TICK):
                    self._handle(self._settled())
            else:
                with Watcher(self._scanner.root) as watcher:
                    self._watch(watcher)
            self._progress(done=True)
        return self.tally

    def _watch(self, watcher: Watcher) -> None:
        interval = self._rescan_sec
        if watcher.refused is not None:
            signals.watch_refused.send_robust(type(self), error=watcher.refused)
            interval = min(interval, RESCAN_UNWATCHED)
        next_scan = 0.0
        while not self._stopping.is_set():
            if (began := time.monotonic()) >= next_scan:
                self._scan()
                # A directory of millions is scanned less often.
                took = time.monotonic() - began
                next_scan = time.monotonic() + max(interval, took / SCAN_SHARE)
            for path in watcher.wait(TICK):
                self._handle(self._below(path))
            self._handle(self._settled())

    def _scan(self) -> None:
        """Go through the whole directory, then forget what is gone. But if nothing is there, or
        another file system, forget nothing: most likely it is not mounted, and everything would be
        pushed again once it is.
        """
        self.tally.found = 0
        self._handle(self._counted(self._scanner.scan()))
        if self.tally.found and not self._stopping.is_set() and self._is_mounted():
            self._insist("forget", partial(self._enqueuer.forget_below, self._scanner.root))
        self._progress(done=True)

    def _counted(self, items: Iterable[Found | Skipped]) -> Iterator[Found | Skipped]:
        for each in items:
            self.tally.found += isinstance(each, Found)
            yield each

    def _is_mounted(self) -> bool:
        try:
            return os.stat(self._scanner.root).st_dev == self._device
        except OSError:
            return False

    def _below(self, path: str) -> Iterator[Found | Skipped]:
        """Yield what is at ``path``, or below it, since a new directory may have been filled before
        the system began to watch it.
        """
        if os.path.isdir(path) and not os.path.islink(path):
            yield from self._scanner.scan(path)
        elif (found := self._scanner.look(path)) is not None:
            yield found

    def _settled(self) -> Iterator[Found | Skipped]:
        present = time.monotonic()
        due = [path for path, when in self._unsettled.items() if when <= present]
        for path in due:
            del self._unsettled[path]
            if (found := self._scanner.look(path)) is not None:
                yield found

    def _handle(self, items: Iterable[Found | Skipped]) -> None:
        """Push what has to be."""
        for batch in batches(items):
            for each in batch:
                if isinstance(each, Skipped):
                    self._skip(each)
            found = [each for each in batch if isinstance(each, Found)]
            unknown = self._insist("look", partial(self._enqueuer.unknown, found))
            if unknown is None:
                break
            self._push([ready for file in unknown if (ready := self._ready(file)) is not None])
            self._progress()

    def _ready(self, found: Found) -> Found | None:
        """Return the file as it is now, if it can be read and is no longer being written."""
        present = self._scanner.open(found)
        if isinstance(present, Skipped):
            self._skip(present)
            return None
        age = time.time() - present.mtime_ns / 1e9
        # A time in the future is of a wrong clock, or of a program that sets times.
        if 0 <= age < SETTLE:
            self._unsettled.setdefault(present.path, time.monotonic() + SETTLE - age)
            return None
        return present

    def _push(self, files: list[Found]) -> None:
        while files and not self._stopping.is_set():
            push = self._insist("push", partial(self._enqueuer.push, files))
            if push is None:
                return
            self.tally.pushed += len(push.jobs)
            if push.jobs:
                signals.jobs_pushed.send_robust(type(self), jobs=push.jobs)
            self._progress()
            files = push.left
            if files:
                # Of those that wait, some may be gone or changed meanwhile.
                self._stopping.wait(push.wait_sec)
                files = [ready for file in files if (ready := self._ready(file)) is not None]

    def _skip(self, skipped: Skipped) -> None:
        if skipped in self._told:
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(skipped)
        self.tally.skipped += 1
        signals.file_skipped.send_robust(type(self), path=skipped.path, why=skipped.why)

    def _insist(self, verb: str, ask: Callable[[], T]) -> T | None:
        """Return what Redis answers, however long it is away, or ``None`` once this is to stop.
        All that is asked can be asked twice.
        """
        wait = FIRST_RETRY
        while not self._stopping.is_set():
            try:
                return ask()
            except redis.RedisError as error:
                signals.redis_failed.send_robust(type(self), verb=verb, error=error)
                self._stopping.wait(wait * random.uniform(0.5, 1))
                wait = min(2 * wait, LONGEST_RETRY)
        return None

    def _progress(self, *, done: bool = False) -> None:
        present = time.monotonic()
        if done or present >= self._next_progress:
            self._next_progress = present + PROGRESS
            signals.progressed.send_robust(type(self), tally=self.tally, done=done)
