"""Waiting while Redis cannot be used: it restarts, loads its data, is full or became a replica."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final

from jobreaper.redisq import signals

if TYPE_CHECKING:
    import redis

FIRST_WAIT_SEC: Final = 0.1
LONGEST_WAIT_SEC: Final = 2.0


class Trouble:
    """The failures in a row of one thread. ``longest`` is the longest wait, in seconds."""

    def __init__(
        self, client: redis.Redis, worker_id: str, *, longest: float = LONGEST_WAIT_SEC
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._longest = longest
        self._failures = 0

    def over(self) -> None:
        """Begin anew after a success."""
        self._failures = 0

    def wait(self, verb: str, error: Exception, stop: threading.Event) -> None:
        """Report a failure, and wait before the next try, longer each time; or until ``stop``."""
        signals.redis_failed.send_robust(
            sender=Trouble, worker_id=self._worker_id, verb=verb, error=error
        )
        if "READONLY" in str(error):
            # This server is a replica now. A new connection may lead to its successor. Those that
            # other threads use are left to them: without their sockets, they would fail anyhow.
            self._client.connection_pool.disconnect(inuse_connections=False)
        wait = min(FIRST_WAIT_SEC * 2**self._failures, self._longest)
        self._failures = min(self._failures + 1, 16)
        stop.wait(wait * random.uniform(0.5, 1))
