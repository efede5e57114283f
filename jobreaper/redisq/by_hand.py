"""What operators do with dead letters: put the job back into its queue, or discard it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import redis

from jobreaper.redisq import signals
from jobreaper.redisq.dead_letters import DeadLetter, decode
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.overview import digest_of
from jobreaper.redisq.scripts import source

# Elements that are read at once while looking for some.
CHUNK: Final = 200

REQUEUED: Final = "requeued"
DISCARDED: Final = "discarded"


@dataclass(kw_only=True)
class Outcome:
    """What became of the chosen letters: those that were ``done`` (``did`` says what), that were no
    longer there, and that are no job and cannot be queued.
    """

    did: str
    done: list[DeadLetter] = field(default_factory=list)
    gone: int = 0
    malformed: int = 0


class DeadLetters:
    """The dead-letter list, for an operator whose name is ``by``.

    Letters are chosen by ``overview.digest_of()``. Every function raises ``redis.RedisError`` if
    Redis cannot be asked; those that were handled before are handled.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, by: str) -> None:
        self._client = client
        self._keys = keys
        self._by = by
        self._take: Any = client.register_script(source("from_dead_letters"))

    def requeue(self, digests: Collection[str]) -> Outcome:
        """Push the jobs to their queues again, with all of their retries."""
        return self._each(digests, self._requeue, Outcome(did=REQUEUED))

    def discard(self, digests: Collection[str]) -> Outcome:
        """Delete letters for good."""
        return self._each(digests, self._discard, Outcome(did=DISCARDED))

    def chosen(self, digests: Collection[str]) -> list[DeadLetter]:
        """Return the letters, as far as they are still there."""
        return [decode(element) for element in self._find(digests)]

    def _each(
        self,
        digests: Collection[str],
        handle: Callable[[bytes, DeadLetter, Outcome], None],
        outcome: Outcome,
    ) -> Outcome:
        elements = list(self._find(digests))
        outcome.gone = len(set(digests)) - len(elements)
        for element in elements:
            handle(element, decode(element), outcome)
        return outcome

    def _find(self, digests: Collection[str]) -> Iterator[bytes]:
        """Yield one element for each digest. Equal elements have the same."""
        wanted = set(digests)
        start = 0
        while wanted:
            elements: Any = self._client.lrange(self._keys.dead_letter, start, start + CHUNK - 1)
            if not elements:
                return
            for element in elements:
                digest = digest_of(element)
                if digest in wanted:
                    wanted.remove(digest)
                    yield element
            start += CHUNK

    def _requeue(self, element: bytes, letter: DeadLetter, outcome: Outcome) -> None:
        job = letter.job
        if job is None:
            outcome.malformed += 1
            return
        queue = self._keys.queue_of(job)
        again = replace(job, retries=0, origin_queue=queue)
        try:
            entry = again.encode()
        # Python reads some JSON that it does not write.
        except (ValueError, RecursionError):
            outcome.malformed += 1
            return
        keys = [self._keys.dead_letter, queue]
        self._handled(self._take(keys, [element, entry]), letter, queue, outcome)

    def _discard(self, element: bytes, letter: DeadLetter, outcome: Outcome) -> None:
        taken = self._take([self._keys.dead_letter], [element])
        job = letter.job
        queue = self._keys.queue_of(job) if job is not None else letter.queue
        self._handled(taken, letter, queue, outcome)

    def _handled(self, taken: int, letter: DeadLetter, queue: str, outcome: Outcome) -> None:
        if not taken:
            outcome.gone += 1
            return
        outcome.done.append(letter)
        signals.dead_letter_handled.send_robust(
            sender=type(self), did=outcome.did, letter=letter, queue=queue, by=self._by
        )
