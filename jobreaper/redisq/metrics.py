"""Prometheus metrics of the Redis queue, in a registry and at a port of its own."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import redis
from django.dispatch import Signal
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq import signals
from jobreaper.redisq.breaker import BreakerState
from jobreaper.redisq.config import Config
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.moves import DeadReason, Move
from jobreaper.redisq.producer import signals as producer_signals

# Of the label `queue`, with the one for all others.
MOST_QUEUES: Final = 50
OTHER: Final = "other"

# From a no-op to an hour, in seconds.
BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 10, 30, 60, 300, 900, 3600)

# `reason` of an attempt whose handler raised. The others are those of dead letters.
ERROR: Final = "error"


class Metrics:
    """The metrics of one process. Call ``connect()`` once, then ``serve()``."""

    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._config = config
        self._keys = Keys.of(config)
        queues = [*self._keys.queues.values(), self._keys.dead_letter, self._keys.completed]
        self._queues = frozenset(queues[: MOST_QUEUES - 1])
        counter = partial(Counter, labelnames=["queue"], registry=self.registry)
        self._produced = counter("jobs_produced", "Jobs that were enqueued.")
        self._consumed = counter("jobs_consumed", "Jobs that workers fetched.")
        self._completed = counter("jobs_completed", "Jobs that were completed.")
        self._retried = counter("jobs_retried", "Failed attempts that are followed by another.")
        self._dead = counter("jobs_dead_letter", "Jobs that went to the dead-letter list.")
        self._moved = counter("reaper_jobs_moved", "Jobs taken back from workers that are dead.")
        self._stale = counter("jobs_stale", "Ends that were rejected: the job was taken back.")
        self._failed = Counter(
            "jobs_failed",
            "Attempts that failed.",
            labelnames=["queue", "reason"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "job_processing_duration_seconds",
            "How long handlers ran.",
            labelnames=["queue"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        gauge = partial(Gauge, labelnames=["queue"], registry=self.registry)
        self._length = gauge("queue_length", "Entries in a list.")
        self._delayed = gauge("queue_delayed_length", "Jobs that wait for their next attempt.")
        self._breaker = gauge(
            "circuit_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open."
        )
        self._up = Gauge("redis_up", "Whether Redis answered last.", registry=self.registry)

    def connect(self) -> None:
        """Subscribe to the signals of the queue and of the producer."""
        for queue in self._keys.queues.values():
            self._breaker.labels(self._label(queue)).set(BreakerState.CLOSED)
        connections: list[tuple[Signal, Any]] = [
            (signals.job_fetched, self._job_fetched),
            (signals.run_ended, self._run_ended),
            (signals.job_completed, partial(self._one, self._completed)),
            (signals.job_retried, self._job_retried),
            (signals.job_dead_lettered, self._dead_lettered),
            (signals.stale_completion, partial(self._one, self._stale)),
            (signals.job_moved, self._jobs_moved),
            (signals.breaker_changed, self._breaker_changed),
            (producer_signals.jobs_pushed, self._jobs_pushed),
        ]
        for signal, receiver in connections:
            signal.connect(receiver, weak=False)

    def serve(self) -> Any:
        """Serve the metrics at ``observability.metrics_port`` in a thread. Return the server, or
        ``None`` if the port is 0.

        Raises:
            ConfigurationError: the port cannot be used.
        """
        port = self._config.observability.metrics_port
        if not port:
            return None
        try:
            server, _ = start_http_server(port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"observability.metrics_port (OBSERVABILITY_METRICS_PORT) {port} cannot be used: "
                f"{error.strerror or error}"
            ) from error
        return server

    def sample(self, client: redis.Redis) -> None:
        """Read the lengths of the lists. If Redis is away, show none rather than old ones."""
        lists = [*self._keys.queues.values(), self._keys.dead_letter, self._keys.completed]
        delayed = list(self._keys.queues.values())
        try:
            with client.pipeline(transaction=False) as asked:
                for name in lists:
                    asked.llen(name)
                for name in delayed:
                    asked.zcard(self._keys.delayed(name))
                answers = asked.execute(raise_on_error=False)
        except redis.RedisError:
            self._up.set(0)
            self._length.clear()
            self._delayed.clear()
            return
        self._up.set(1)
        self._set_all(self._length, lists, answers[: len(lists)])
        self._set_all(self._delayed, delayed, answers[len(lists) :])

    def sample_until(self, stop: threading.Event, client: redis.Redis) -> None:
        """Sample every ``observability.queue_sample_interval`` until ``stop`` is set."""
        while not stop.is_set():
            self.sample(client)
            stop.wait(self._config.observability.queue_sample_interval)

    def _set_all(self, gauge: Gauge, names: Sequence[str], values: Sequence[Any]) -> None:
        sums = Counts[str]()
        for name, value in zip(names, values, strict=True):
            # What is no list has no length.
            if isinstance(value, int):
                sums[self._label(name)] += value
        gauge.clear()
        for label, total in sums.items():
            gauge.labels(label).set(total)

    def _label(self, queue: str | None) -> str:
        return queue if queue is not None and queue in self._queues else OTHER

    def _one(self, counter: Counter, /, *, queue: str, **_: Any) -> None:
        counter.labels(self._label(queue)).inc()

    def _job_fetched(self, queue: str, **_: Any) -> None:
        self._one(self._consumed, queue=queue)

    def _run_ended(self, queue: str, error: BaseException | None, **about: Any) -> None:
        self._duration.labels(self._label(queue)).observe(about["duration_sec"])
        if error is not None:
            self._failed.labels(self._label(queue), ERROR).inc()

    def _job_retried(self, queue: str, **_: Any) -> None:
        self._one(self._retried, queue=queue)

    def _dead_lettered(self, queue: str | None, reason: str, **_: Any) -> None:
        label = self._label(queue)
        self._dead.labels(label).inc()
        # An attempt that failed was counted when it ended.
        if reason != DeadReason.FAILED:
            self._failed.labels(label, DeadReason(reason)).inc()

    def _jobs_moved(self, moves: Sequence[Move], **_: Any) -> None:
        for move in moves:
            label = self._label(move.queue)
            self._moved.labels(label).inc()
            self._failed.labels(label, DeadReason(move.reason or DeadReason.WORKER_LOST)).inc()
            if move.reason:
                self._dead.labels(label).inc()

    def _breaker_changed(self, queue: str, state: BreakerState, **_: Any) -> None:
        self._breaker.labels(self._label(queue)).set(state)

    def _jobs_pushed(self, jobs: Sequence[Any], **_: Any) -> None:
        for job in jobs:
            self._one(self._produced, queue=job.origin_queue)
