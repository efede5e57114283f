"""The thread of a worker process that renews the heartbeats of its workers, and moves delayed jobs
to their queues once they are due.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jobreaper.identity import local_clock
from jobreaper.redisq import signals
from jobreaper.redisq.trouble import Trouble

if TYPE_CHECKING:
    from jobreaper.redisq.scripts import Scripts
    from jobreaper.redisq.slot import Slot

# Two heartbeats may fail before one is missed.
BEATS_IN_A_TTL: Final = 3

# How late a delayed job may be.
PROMOTE_SEC: Final = 0.2


class Pulse:
    """Renews the heartbeats of ``slots``, which last ``ttl`` seconds, until ``stop()``."""

    def __init__(self, scripts: Scripts, slots: Sequence[Slot], *, ttl: float) -> None:
        self._scripts = scripts
        self._slots = slots
        self._ttl = ttl
        self._stopping = threading.Event()
        # Daemon, so that heartbeats are the last thing to end.
        self._thread = threading.Thread(target=self._loop, name="pulse", daemon=True)

    def start(self) -> None:
        """Send the first heartbeats, so that no entry is ever in a list without one; then go on in
        a thread.

        Raises:
            redis.RedisError: the server does not answer, or refuses.
        """
        self._renew()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopping.set()
        self._thread.join()

    def _loop(self) -> None:
        interval = self._ttl / BEATS_IN_A_TTL
        name = self._slots[0].worker_id
        # Within the time of a heartbeat, so that one comes soon after Redis is back.
        trouble = Trouble(self._scripts.client, name, longest=min(2.0, interval / 2))
        renewed = local_clock()
        while not self._stopping.wait(PROMOTE_SEC * random.uniform(0.5, 1)):
            verb = "renew"
            try:
                now = local_clock()
                if now - renewed >= interval:
                    self._renew()
                    renewed = now
                verb = "promote"
                self._scripts.promote()
                trouble.over()
            # Whatever it is: without heartbeats, healthy jobs would be taken back.
            except Exception as error:
                # After an outage the heartbeats may have run out.
                renewed = float("-inf")
                trouble.wait(verb, error, self._stopping)

    def _renew(self) -> None:
        before = [slot.run for slot in self._slots]
        lengths = self._scripts.renew([slot.worker_id for slot in self._slots])
        for slot, run, length in zip(self._slots, before, lengths, strict=True):
            # A run that began or ended meanwhile says nothing about its list.
            if length or run is None or run is not slot.run or run.ending or run.lost:
                continue
            run.lost = True
            signals.job_lost.send_robust(
                sender=Pulse, worker_id=slot.worker_id, queue=run.queue, job=run.job
            )
