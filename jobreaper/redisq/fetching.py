"""Which queue a worker fetches from: the order of priorities, and the breakers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jobreaper.redisq.breaker import Breaker, Ticket

if TYPE_CHECKING:
    from jobreaper.redisq.scripts import Scripts

# Every so many fetches, a worker begins with a lower queue, each of them in turn. So the busiest
# high queue leaves one job in ten to the lower ones.
TURN: Final = 10

# While no breaker admits a job, in seconds.
_CLOSED_WAIT_SEC: Final = 0.25

# For an entry of a queue that nobody asked for: it says nothing to a breaker.
_NO_TICKET: Final = Ticket(-1)


class Taken(NamedTuple):
    """An entry in the worker's list. ``queue`` is ``None`` if an earlier answer was lost."""

    entry: bytes
    queue: str | None
    ticket: Ticket


def in_order(queues: Sequence[str], number: int) -> Sequence[str]:
    """Return ``queues`` in the order for the fetch with this ``number``."""
    turns, is_other = divmod(number, TURN)
    if is_other or len(queues) < 2:
        return queues
    first = queues[1 + turns % (len(queues) - 1)]
    return [first, *(queue for queue in queues if queue != first)]


class Fetcher:
    """Fetches for one worker. ``wait`` is for how many seconds it waits for one queue."""

    def __init__(
        self, scripts: Scripts, worker_id: str, breakers: Mapping[str, Breaker], *, wait: float
    ) -> None:
        self._scripts = scripts
        self._worker_id = worker_id
        self._breakers = breakers
        self._queues = list(breakers)
        self._wait = wait
        # Workers that begin together must not all take their turns together.
        self._number = random.randrange(TURN * len(self._queues))
        self._waits = self._number

    def next(self, stop: threading.Event) -> Taken | None:
        """Return the next entry, or ``None`` if none came in time.

        Raises:
            redis.RedisError: the server does not answer, or refuses.
        """
        tickets = dict(self._admitted())
        if not tickets:
            stop.wait(_CLOSED_WAIT_SEC)
            return None
        taken: Taken | None = None
        try:
            taken = self._take(tickets)
        finally:
            for queue, ticket in tickets.items():
                if taken is None or ticket is not taken.ticket:
                    self._breakers[queue].cancel(ticket)
        return taken

    def _admitted(self) -> Iterator[tuple[str, Ticket]]:
        self._number += 1
        for queue in in_order(self._queues, self._number):
            if ticket := self._breakers[queue].admit():
                yield queue, ticket

    def _take(self, tickets: Mapping[str, Ticket]) -> Taken | None:
        queues = list(tickets)
        found = self._scripts.fetch(self._worker_id, queues)
        if found is None:
            # Redis waits for one list at a time: each worker goes round them, so that some worker
            # waits at each.
            self._waits += 1
            queue = queues[self._waits % len(queues)]
            found = self._scripts.wait(self._worker_id, queue, self._wait)
        if found is None:
            return None
        return Taken(found.entry, found.queue, tickets.get(found.queue or "", _NO_TICKET))
