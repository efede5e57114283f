"""One of a worker process's workers: a thread, an id and a processing list of its own, which has at
most one entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import close_old_connections

from jobreaper.exceptions import MalformedJob
from jobreaper.redisq import running, signals
from jobreaper.redisq.dead_letters import DeadLetter
from jobreaper.redisq.fetching import Fetcher, Taken
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.moves import DeadReason, tried_again
from jobreaper.redisq.running import Run
from jobreaper.redisq.trouble import Trouble

if TYPE_CHECKING:
    from jobreaper.redisq.breaker import Breaker
    from jobreaper.redisq.config import Worker as WorkerConfig
    from jobreaper.redisq.scripts import Scripts

Handler = Callable[[Job], Any]

# Doubling more often than this reaches every maximum, and at some point no float.
_MOST_DOUBLINGS: Final = 60


def backoff(attempt: int, *, base: float, longest: float) -> float:
    """Return the seconds until the next try after the failed ``attempt``, counted from 1."""
    return float(min(base * 2 ** min(attempt - 1, _MOST_DOUBLINGS), longest))


def in_words(error: BaseException) -> str:
    """Return the class and the message of an error. Some classes cannot say what happened."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


class Slot:
    """Fetches jobs and runs them, one after another, until ``stop`` is set."""

    def __init__(
        self,
        worker_id: str,
        handler: Handler,
        scripts: Scripts,
        breakers: Mapping[str, Breaker],
        config: WorkerConfig,
        stop: threading.Event,
    ) -> None:
        self.worker_id = worker_id
        self.run: Run | None = None
        self._handler = handler
        self._scripts = scripts
        self._breakers = breakers
        self._config = config
        self._stop = stop
        self._abandoned = threading.Event()
        self._number = 0
        wanted = [config.queues[priority] for priority in config.priorities]
        queues = {queue: breakers[queue] for queue in wanted}
        self._fetcher = Fetcher(scripts, worker_id, queues, wait=config.brpoplpush_timeout)
        # A handler that does not end must not keep the process from ending.
        self.thread = threading.Thread(target=self._loop, name=worker_id, daemon=True)

    def abandon(self) -> bool:
        """Give the job that still runs back to its queue. Returns whether there was one.

        Its handler goes on until the process ends, and its end is rejected.
        """
        self._abandoned.set()
        run = self.run
        return run is not None and not run.ending and self._release(run)

    def _loop(self) -> None:
        trouble = Trouble(self._scripts.client, self.worker_id)
        while not self._stop.is_set():
            try:
                taken = self._fetcher.next(self._stop)
                trouble.over()
                if taken is not None:
                    self._take_up(taken)
            # Whatever it is, the other jobs are still to be run. What is in the list already is
            # what the next fetch returns.
            except Exception as error:
                trouble.wait("fetch", error, self._stop)

    def _take_up(self, taken: Taken) -> None:
        self._number += 1
        try:
            job = parse(taken.entry)
        except MalformedJob as error:
            self._bury_malformed(taken, error)
            return
        queue = taken.queue or self._scripts.keys.queue_of(job)
        run = Run(self._number, self.worker_id, queue, taken.entry, job, taken.ticket)
        self.run = run
        try:
            if self._stop.is_set():
                self._release(run)
            else:
                self._work(run)
        finally:
            self.run = None

    def _work(self, run: Run) -> None:
        about = {"worker_id": self.worker_id, "queue": run.queue, "job": run.job}
        signals.job_fetched.send_robust(sender=Slot, **about)
        error = self._call(run)
        seconds = run.seconds
        signals.run_ended.send_robust(sender=Slot, **about, error=error, duration_sec=seconds)
        if run.lost:
            self._breakers[run.queue].cancel(run.ticket)
        else:
            self._breakers[run.queue].record(run.ticket, failed=error is not None)
        if error is None:
            if self._end(run, "finish", self._complete):
                signals.job_completed.send_robust(sender=Slot, **about, duration_sec=seconds)
        elif run.job.retries < self._config.max_retries:
            self._retry(run, error, seconds)
        else:
            self._bury(run, error)

    def _call(self, run: Run) -> BaseException | None:
        close_old_connections()
        try:
            with running.being(run):
                self._handler(run.job)
        # sys.exit() in a handler ends its job, not the worker.
        except BaseException as error:
            return error
        finally:
            close_old_connections()
        return None

    def _complete(self, run: Run) -> bool:
        return self._scripts.complete(self.worker_id, run.number, run.entry)

    def _retry(self, run: Run, error: BaseException, seconds: float) -> None:
        try:
            again, text = tried_again(run.job, run.queue)
        except MalformedJob:
            self._bury(run, error)
            return
        limits = self._config.backoff
        delay = backoff(again.retries, base=limits.base, longest=limits.max)

        def put_off(run: Run) -> bool:
            return self._scripts.retry(
                self.worker_id,
                run.number,
                run.entry,
                again=text,
                queue=run.queue,
                delay=delay,
            )

        if self._end(run, "fail", put_off):
            signals.job_retried.send_robust(
                sender=Slot,
                worker_id=self.worker_id,
                queue=run.queue,
                job=again,
                error=error,
                delay_sec=delay,
                duration_sec=seconds,
            )

    def _bury(self, run: Run, error: BaseException) -> None:
        letter = DeadLetter(
            entry=run.entry,
            reason=DeadReason.FAILED,
            detail=in_words(error),
            queue=run.queue,
            worker_id=self.worker_id,
        )
        text = letter.encode()
        if self._end(
            run, "fail", lambda run: self._scripts.bury(self.worker_id, run.number, run.entry, text)
        ):
            self._announce_dead(letter, run.job)

    def _bury_malformed(self, taken: Taken, error: MalformedJob) -> None:
        if taken.queue:
            self._breakers[taken.queue].cancel(taken.ticket)
        letter = DeadLetter(
            entry=taken.entry,
            reason=DeadReason.MALFORMED,
            detail=str(error),
            queue=taken.queue or "",
            worker_id=self.worker_id,
        )
        if self._scripts.bury(self.worker_id, self._number, taken.entry, letter.encode()):
            self._announce_dead(letter, None)

    def _announce_dead(self, letter: DeadLetter, job: Job | None) -> None:
        signals.job_dead_lettered.send_robust(
            sender=Slot,
            worker_id=self.worker_id,
            queue=letter.queue or None,
            job=job,
            reason=letter.reason,
            detail=letter.detail,
            entry=letter.entry,
        )

    def _release(self, run: Run) -> bool:
        self._breakers[run.queue].cancel(run.ticket)
        released = self._end(
            run,
            "release",
            lambda run: self._scripts.release(self.worker_id, run.number, run.entry, run.queue),
        )
        if released:
            signals.job_released.send_robust(
                sender=Slot, worker_id=self.worker_id, queue=run.queue, job=run.job
            )
        return released

    def _end(self, run: Run, verb: str, move: Callable[[Run], bool]) -> bool:
        """Write the end of a run, however long Redis takes to come back. Returns ``False`` if the
        job is no longer this worker's.
        """
        run.ending = True
        trouble = Trouble(self._scripts.client, self.worker_id)
        while True:
            try:
                moved = move(run)
                break
            # Whatever it is: otherwise the handler would run again.
            except Exception as error:
                if self._abandoned.is_set():
                    # The process ends now, and what is left in its lists is reaped.
                    return False
                trouble.wait(verb, error, self._abandoned)
        if not moved:
            signals.stale_completion.send_robust(
                sender=Slot, worker_id=self.worker_id, queue=run.queue, job=run.job, verb=verb
            )
        return moved
