"""What the Redis queue asks of the server, each in one command or one Lua script.

An entry is always in exactly one place: a queue, a worker's processing list, the delayed jobs of a
queue, the completed list or the dead-letter list. Each function here moves entries from one place
to another at once, or not at all. The scripts are in ``scripts/``.

The queue needs one server, or a cluster in which all of its keys have the same hash tag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import redis

    from jobreaper.redisq.keys import Keys
    from jobreaper.redisq.moves import Move

# At most so many delayed jobs of a queue become due in one script, which nothing can interrupt.
PROMOTED_AT_ONCE: Final = 500

_FOLDER: Final = resources.files("jobreaper.redisq") / "scripts"

# The first with LMOVE, which takes the place of RPOPLPUSH.
_LMOVE_SINCE: Final = (6, 2)
# The first whose blocking commands take a part of a second.
_FRACTIONS_SINCE: Final = (6, 0)


class Fetched(NamedTuple):
    """An entry that is in the worker's own list now, and the queue that it came from: ``None`` if
    it was there before, because an earlier answer was lost.
    """

    entry: bytes
    queue: str | None


class Taking(IntEnum):
    """What became of an entry that was to be taken back."""

    REFUSED = -1
    GONE = 0
    TAKEN = 1


def source(name: str) -> str:
    """Return the text of the script ``name``, with what it shares with others in front."""
    return "\n".join(
        (_FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name)
    )


class Scripts:
    """The moves between the lists that ``keys`` names. For any number of threads.

    ``ttl`` is how many seconds a heartbeat lasts. Every function raises ``redis.RedisError`` if the
    server does not answer or refuses; nothing was moved then, or everything, and it can be called
    again.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, ttl: float) -> None:
        self.client = client
        self.keys = keys
        self._ttl_ms = _milliseconds(ttl)
        self._scripts: dict[str, Any] = {}
        self._version: tuple[int, ...] | None = None

    @property
    def version(self) -> tuple[int, ...]:
        """The server's version, such as ``(7, 0, 15)``."""
        if self._version is None:
            named: Any = self.client.info("server")
            self._version = tuple(int(part) for part in named["redis_version"].split(".")[:3])
        return self._version

    def fetch(self, worker_id: str, queues: Sequence[str]) -> Fetched | None:
        """Move the next entry of the first of ``queues`` that has one into the worker's list."""
        command = "LMOVE" if self.version >= _LMOVE_SINCE else "RPOPLPUSH"
        found = self._run("fetch", [*self._own(worker_id), *queues], self._ttl_ms, command)
        if not found:
            return None
        number, entry = found
        return Fetched(entry, queues[number - 1] if number else None)

    def wait(self, worker_id: str, queue: str, seconds: float) -> Fetched | None:
        """Wait up to ``seconds`` for an entry of ``queue``, and move it into the worker's list."""
        processing = self.keys.processing(worker_id)
        if self.version < _FRACTIONS_SINCE:
            seconds = math.ceil(seconds)
        client: Any = self.client
        if self.version >= _LMOVE_SINCE:
            entry = client.blmove(queue, processing, seconds, "RIGHT", "LEFT")
        else:
            entry = client.execute_command("BRPOPLPUSH", queue, processing, seconds)
        if entry is None:
            return None
        # A blocking command cannot be part of a script, so the heartbeat comes after it.
        mine = self._run("begin", self._own(worker_id), self._ttl_ms, entry)
        return Fetched(entry, queue) if mine else None

    def complete(self, worker_id: str, run: int, entry: bytes) -> bool:
        """Move an entry from the worker's list to the completed list.

        ``run`` is a number that the worker uses only once. Returns ``False`` if the entry is no
        longer in the worker's list; then nothing was written.
        """
        keys = [*self._own(worker_id), self.keys.completed]
        return bool(self._run("complete", keys, entry, run, self._ttl_ms))

    def retry(
        self, worker_id: str, run: int, entry: bytes, *, again: bytes, queue: str, delay: float
    ) -> bool:
        """Put ``again`` in place of an entry of the worker's list, to be pushed to ``queue`` in
        ``delay`` seconds. Returns ``False`` as ``complete()``.
        """
        keys = [*self._own(worker_id), self.keys.delayed(queue)]
        # A sorted set has each member once, and two jobs may have the same bytes.
        member = f"{worker_id}.{run}|".encode() + again
        delay_ms = _milliseconds(delay)
        return bool(self._run("fail", keys, entry, run, self._ttl_ms, member, delay_ms))

    def bury(self, worker_id: str, run: int, entry: bytes, letter: bytes) -> bool:
        """Put ``letter`` into the dead-letter list in place of an entry of the worker's list.
        Returns ``False`` as ``complete()``.
        """
        keys = [*self._own(worker_id), self.keys.dead_letter]
        return bool(self._run("fail", keys, entry, run, self._ttl_ms, letter, ""))

    def release(self, worker_id: str, run: int, entry: bytes, queue: str) -> bool:
        """Give an entry of the worker's list back to the front of ``queue``. Returns ``False`` as
        ``complete()``.
        """
        keys = [*self._own(worker_id), queue]
        return bool(self._run("release", keys, entry, run, self._ttl_ms))

    def renew(self, worker_ids: Iterable[str]) -> list[int]:
        """Renew the heartbeats of workers. Returns how many entries the list of each has."""
        keys = [key for each in worker_ids for key in reversed(self._own(each))]
        return [int(length) for length in self._run("renew", keys, self._ttl_ms)]

    def forget(self, worker_ids: Iterable[str]) -> None:
        """Delete the heartbeats of workers that end: what is in their lists can be reaped."""
        self.client.delete(*(self.keys.heartbeat(each) for each in worker_ids))

    def promote(self) -> int:
        """Move delayed jobs that are due to their queues. Returns how many were moved."""
        queues = self.keys.queues.values()
        keys = [key for queue in queues for key in (self.keys.delayed(queue), queue)]
        return int(self._run("promote", keys, PROMOTED_AT_ONCE))

    def take_back(self, worker_id: str, moves: Sequence[Move]) -> list[Taking] | None:
        """Move entries out of the list of a dead worker. Returns what became of each, or ``None``
        if the worker has a heartbeat.
        """
        targets = list(dict.fromkeys(move.target for move in moves))
        # KEYS begins with the worker's own two.
        numbers = {target: number for number, target in enumerate(targets, start=3)}
        processing, heartbeat = self._own(worker_id)
        arguments = [part for m in moves for part in (m.entry, numbers[m.target], m.text)]
        found = self._run("take_back", [heartbeat, processing, *targets], *arguments)
        return None if found is None else [Taking(each) for each in found]

    def seen(self, run_id: str, *, anew: bool) -> tuple[float, int]:
        """Remember the server that has ``run_id``. Returns for how many seconds reapers have known
        it, from now on if ``anew``; and the cursor of ``keep_cursor()``.
        """
        since, cursor = self._run("seen", [self._record], run_id, int(anew))
        return int(since) / 1000, int(cursor)

    def keep_cursor(self, cursor: int) -> None:
        """Remember where a pass of the reaper stopped, for the next, whichever process runs it."""
        self.client.hset(self._record, "cursor", str(cursor))

    @property
    def _record(self) -> str:
        return self.keys.named("reaper")

    def _own(self, worker_id: str) -> list[str]:
        return [self.keys.processing(worker_id), self.keys.heartbeat(worker_id)]

    def _run(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(source(name))
        return script(keys, arguments)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
