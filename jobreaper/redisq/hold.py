"""Whether the reaper should wait: after Redis was away, workers need time to send a heartbeat.

A heartbeat is a key that runs out by the server's clock, whether or not its worker could reach the
server. So nobody is called dead until the server has been known for a grace: not after a restart or
a failover, which change its ``run_id``; not after it lost its data, and the reaper's record with
it; and not after this reaper itself could not reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobreaper.identity import local_clock

if TYPE_CHECKING:
    from jobreaper.redisq.scripts import Scripts


class Hold:
    """The decision of one reaper. ``grace`` is for how many seconds a server must have been known,
    ``usual_gap`` how many at most lie between two passes.
    """

    def __init__(self, scripts: Scripts, *, grace: float, usual_gap: float) -> None:
        self._scripts = scripts
        self._grace = grace
        self._longest_gap = usual_gap + grace / 3
        self._passed: float | None = None
        self._anew = False

    def begin_anew(self) -> None:
        """Start the grace again at the next look: the server could not be reached."""
        self._anew = True

    def look(self) -> tuple[str | None, int]:
        """Return why nothing may be reaped now, or ``None``; and the cursor of the last pass.

        Raises:
            redis.RedisError: the server does not answer, or refuses.
        """
        began = local_clock()
        # After a longer sleep of this machine or of the server, heartbeats may have run out in it.
        slept = self._passed is not None and began - self._passed > self._longest_gap
        server: Any = self._scripts.client.info("server")
        known, cursor = self._scripts.seen(server["run_id"], anew=self._anew or slept)
        self._anew = local_clock() - began > self._grace / 3
        remaining = self._grace - known
        if remaining <= 0 and not self._anew:
            return None, cursor
        return (
            f"Redis came up, lost its data or could not be reached less than {self._grace:g} s "
            f"ago: workers have {max(remaining, 0):.0f} s more to send a heartbeat"
        ), cursor

    def passed(self) -> None:
        """Note that a pass ended."""
        self._passed = local_clock()
