"""The worker process of the Redis queue: a pool of workers, their heartbeats, and their end."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import redis
from django.utils.module_loading import import_string

from jobreaper.exceptions import ConfigurationError
from jobreaper.identity import local_clock
from jobreaper.redisq import signals
from jobreaper.redisq.breaker import Breaker
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.pulse import Pulse
from jobreaper.redisq.scripts import Scripts
from jobreaper.redisq.slot import Handler, Slot

if TYPE_CHECKING:
    from jobreaper.redisq.config import Config

# Less than the 30 seconds that Kubernetes leaves a pod between SIGTERM and SIGKILL.
DRAIN_SEC: Final = 20.0

# How late a signal may be noticed.
WAKE_SEC: Final = 0.5


def handler_of(config: Config) -> Handler:
    """Return the callable that ``worker.handler`` names.

    Raises:
        ConfigurationError: it is not set, cannot be imported, or is not callable.
    """
    path = config.worker.handler
    if not path:
        raise ConfigurationError("worker.handler (WORKER_HANDLER) is not set: name a function")
    try:
        handler = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"worker.handler (WORKER_HANDLER): {error}") from error
    if not callable(handler):
        raise ConfigurationError(f"worker.handler (WORKER_HANDLER): {path} is not a function")
    return handler  # type: ignore[no-any-return]


class Worker:
    """A pool of ``worker.count`` workers, which call ``worker.handler`` with each ``Job``. A
    handler that raises fails its job.

    Each of the workers has an id of its own, new with each ``Worker``: what a dead one leaves in
    its list is never taken for another's.

    Raises:
        ConfigurationError: ``worker.handler`` is not a function.
    """

    def __init__(
        self,
        config: Config,
        client: redis.Redis | None = None,
        *,
        drain: float = DRAIN_SEC,
    ) -> None:
        self._drain = drain
        self._stop = threading.Event()
        keys = Keys.of(config)
        self.client = client or connect(config)
        self._scripts = Scripts(self.client, keys, ttl=config.worker.heartbeat_ttl)
        limits = config.circuit_breaker
        self.breakers = {
            queue: Breaker(
                queue,
                failure_threshold=limits.failure_threshold,
                window=limits.window,
                cooldown=limits.cooldown_period,
                min_samples=limits.min_samples,
            )
            for queue in keys.queues.values()
        }
        handler = handler_of(config)
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._slots = [
            Slot(
                f"{name}-{number}", handler, self._scripts, self.breakers, config.worker, self._stop
            )
            for number in range(config.worker.count)
        ]
        self._pulse = Pulse(self._scripts, self._slots, ttl=config.worker.heartbeat_ttl)

    @property
    def worker_ids(self) -> list[str]:
        """The ids of the workers of this process."""
        return [slot.worker_id for slot in self._slots]

    def run(self) -> int:
        """Run jobs until ``stop()``, then wait ``drain`` seconds for those that have begun.

        Returns how many did not end in time and went back to their queues. Their handlers may
        still be at work: end the process at once.

        Raises:
            redis.RedisError: the server cannot be used at the start.
        """
        self._pulse.start()
        for slot in self._slots:
            slot.thread.start()
        # Not without a limit: the system may give a signal to another thread, and then only a main
        # thread that looks up runs the handler that calls stop().
        while not self._stop.wait(WAKE_SEC):
            pass
        deadline = local_clock() + self._drain
        for slot in self._slots:
            slot.thread.join(max(0.0, deadline - local_clock()))
        released = [slot.abandon() for slot in self._slots if slot.thread.is_alive()]
        # Heartbeats are the last to end, so that nothing is reaped that goes back by itself.
        self._pulse.stop()
        self._say_goodbye()
        signals.worker_stopped.send_robust(sender=Worker, worker_ids=self.worker_ids)
        return sum(released)

    def stop(self) -> None:
        """Fetch no more, and let ``run()`` end. May be called by a signal handler."""
        self._stop.set()

    def _say_goodbye(self) -> None:
        # Otherwise they run out by themselves.
        with suppress(redis.RedisError):
            self._scripts.forget(self.worker_ids)
