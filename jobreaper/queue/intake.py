"""How many jobs a worker claims, and when it looks for more."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from jobreaper import conf
from jobreaper.identity import local_clock
from jobreaper.presence import here
from jobreaper.protocol.batch import Run, claim_group
from jobreaper.tables import JobTable

POLL_JITTER: Final = 0.1

# A notification wakes every idle worker, and one of them gets the job. One that has looked in vain
# does not look again at once: not for this time at first, which doubles up to the longest.
FIRST_REST_SEC: Final = 0.05
LONGEST_REST_SEC: Final = 1.0

# A job that has waited this long for its turn is given back, because other workers may be idle.
LONGEST_WAIT_SEC: Final = 3.0
# At most this share of the shortest lease and of the shortest max_runtime, which both begin with
# the claim.
LONGEST_WAIT_SHARE: Final = 0.1
# A worker claims the jobs that it can run in this share of that time, by the pace of its last jobs.
AHEAD_SHARE: Final = 1 / 3

# From one claim to the next, the batch grows at most by this factor, because the first jobs show
# the pace.
GROWTH: Final = 8
# The weight of the latest jobs in the pace, once for each group of this size or for fewer jobs. The
# first job of a process is often slow, and a few hundred others show that it was an exception.
PACE_WEIGHT: Final = 0.3
PACE_GROUP: Final = 32


class Intake:
    """Claims jobs of a table into a window: as many as can run soon, by the pace of the last ones.

    Args:
        types: only jobs of these types are claimed.
        stages, queues: only jobs of these are claimed, unless it is ``None``.
        concurrency: the number of jobs that run at once; the window is never smaller.
        batch: the maximum number of jobs per claim.
        poll_sec: how long to wait after a claim that found nothing.
    """

    def __init__(
        self,
        table: JobTable,
        *,
        types: Iterable[str],
        stages: Iterable[str] | None,
        queues: Iterable[str] | None = None,
        concurrency: int,
        batch: int,
        poll_sec: float,
    ) -> None:
        self._table = table
        self._types = list(types)
        self._stages = None if stages is None else list(stages)
        self._queues = None if queues is None else list(queues)
        self._concurrency = concurrency
        self._batch = batch
        self._poll_sec = poll_sec
        share_sec = conf.settings().shortest_run_sec * LONGEST_WAIT_SHARE
        self.longest_wait_sec = min(LONGEST_WAIT_SEC, share_sec)
        # The number of jobs that should wait or run.
        self.window = concurrency
        self._sec_a_job = 0.0
        # When to look for jobs again, by the local clock.
        self.next_look = 0.0
        # Whether a notification is the reason of the next look; until when none is, and how long
        # this may last.
        self._heard = False
        self._rests_until = self._rest_sec = 0.0

    def has_room(self, left: int) -> bool:
        """Return whether to claim more while ``left`` jobs wait or run. A window that is larger
        than the threads need is filled when half of it is empty.
        """
        return left < self.window and (self.window == self._concurrency or left <= self.window // 2)

    def claim(self, left: int, most: int | None = None) -> list[Run]:
        """Claim as many jobs as there is room for besides ``left`` others, and at most ``most``.

        Raises:
            django.db.Error: the database could not be reached.
        """
        if not self._types:
            self.look_later()
            return []
        room = min(self.window - left, self._batch, self._batch if most is None else most)
        now = local_clock()
        runs = claim_group(
            self._table, room, types=self._types, stages=self._stages, queues=self._queues
        )
        here.hold_and_prepare(self._table.connection())
        self._rest(now, in_vain=self._heard and not runs)
        if not runs:
            jitter = random.uniform(1 - POLL_JITTER, 1 + POLL_JITTER)
            self.next_look = now + self._poll_sec * jitter
        return runs

    def _rest(self, now: float, *, in_vain: bool) -> None:
        if in_vain:
            self._rest_sec = min(max(2 * self._rest_sec, FIRST_REST_SEC), LONGEST_REST_SEC)
            # At different moments, so that not all of them come at once the next time.
            self._rests_until = now + self._rest_sec * random.random()
        else:
            self._rests_until = self._rest_sec = 0.0
        self._heard = False

    def hear(self) -> None:
        """Claim soon, because there was a notification: at once, unless the last one was in vain a
        moment ago.
        """
        self._heard = True
        self.next_look = min(self.next_look, self._rests_until)

    def add_type(self, type: str) -> None:
        """Claim jobs of one more type, soon."""
        self._types.append(type)
        self.look_now()

    def look_now(self) -> None:
        """Claim as soon as there is room."""
        self.next_look = 0.0

    def look_later(self) -> None:
        """Claim after the usual pause, even if there are jobs."""
        self.next_look = local_clock() + self._poll_sec

    def learn(self, ran: Sequence[float]) -> None:
        """Update the pace with the seconds for which jobs ran."""
        if not ran:
            return
        pace = sum(ran) / len(ran)
        known = self._sec_a_job
        # Slower jobs count at once, faster ones gradually.
        weight = 1 - (1 - PACE_WEIGHT) ** max(1, len(ran) / PACE_GROUP)
        self._sec_a_job = pace if pace > known else known + (pace - known) * weight
        ahead_sec = self.longest_wait_sec * AHEAD_SHARE
        can_run = ahead_sec / max(self._sec_a_job, 1e-6) * self._concurrency
        grown = min(self.window * GROWTH, 2 * self._batch, int(can_run))
        self.window = max(grown, self._concurrency)

    def start_small(self) -> None:
        """Claim no more than the threads can run at once, until the pace is known again."""
        self.window = self._concurrency
