"""What is in Redis now, for people: queues, workers and dead letters, in a bounded amount."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from jobreaper.exceptions import MalformedJob
from jobreaper.redisq.dead_letters import DeadLetter, decode
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.keys import Keys

MOST_WORKERS: Final = 200
# Finding workers goes over all keys of the database, in seconds.
LONGEST_SEARCH: Final = 0.5
SCAN_COUNT: Final = 1000


@dataclass(frozen=True, kw_only=True)
class QueueNow:
    """A list. Lengths are ``None`` where the key is not what it should be."""

    name: str
    priority: str
    length: int | None
    delayed: int | None


@dataclass(frozen=True, kw_only=True)
class WorkerNow:
    """A worker with a list or a heartbeat. ``heartbeat_sec`` is for how long its heartbeat lasts,
    ``None`` if it has none; ``job`` is what it works on, ``None`` if that is no job.
    """

    id: str
    entries: int
    heartbeat_sec: float | None
    job: Job | None


@dataclass(frozen=True, kw_only=True)
class LetterNow:
    """A dead letter. ``digest`` finds it again: positions move."""

    letter: DeadLetter
    digest: str


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything at a glance. ``all_workers`` is whether no worker is left out."""

    queues: Sequence[QueueNow]
    completed: int | None
    dead: int | None
    workers: Sequence[WorkerNow]
    all_workers: bool


def overview(client: redis.Redis, keys: Keys) -> Overview:
    """Return what is in Redis now.

    Raises:
        redis.RedisError: it cannot be asked.
    """
    queues = dict(keys.queues)
    with client.pipeline(transaction=False) as asked:
        for name in queues.values():
            asked.llen(name)
            asked.zcard(keys.delayed(name))
        asked.llen(keys.completed)
        asked.llen(keys.dead_letter)
        *lengths, completed, dead = map(_count, asked.execute(raise_on_error=False))
    pairs = zip(lengths[::2], lengths[1::2], strict=True)
    workers, all_workers = _workers(client, keys)
    return Overview(
        queues=[
            QueueNow(name=name, priority=priority, length=length, delayed=delayed)
            for (priority, name), (length, delayed) in zip(queues.items(), pairs, strict=True)
        ],
        completed=completed,
        dead=dead,
        workers=workers,
        all_workers=all_workers,
    )


def dead_letters(client: redis.Redis, keys: Keys, start: int, number: int) -> list[LetterNow]:
    """Return ``number`` dead letters from ``start``, the latest first.

    Raises:
        redis.RedisError: it cannot be asked.
    """
    elements: Any = client.lrange(keys.dead_letter, start, start + number - 1)
    return [LetterNow(letter=decode(each), digest=digest_of(each)) for each in elements]


def digest_of(element: bytes) -> str:
    """Return what identifies an element of the dead-letter list."""
    return hashlib.sha256(element).hexdigest()


def _count(answer: Any) -> int | None:
    return answer if isinstance(answer, int) else None


def _workers(client: redis.Redis, keys: Keys) -> tuple[list[WorkerNow], bool]:
    ids, complete = _worker_ids(client, keys)
    with client.pipeline(transaction=False) as asked:
        for each in ids:
            asked.pttl(keys.heartbeat(each))
            asked.llen(keys.processing(each))
            asked.lindex(keys.processing(each), -1)
        answers = asked.execute(raise_on_error=False)
    rows = zip(ids, answers[::3], answers[1::3], answers[2::3], strict=True)
    return [_worker(*row) for row in rows], complete


def _worker(worker_id: str, ttl_ms: Any, entries: Any, entry: Any) -> WorkerNow:
    lasts = isinstance(ttl_ms, int) and ttl_ms >= 0
    return WorkerNow(
        id=worker_id,
        entries=_count(entries) or 0,
        heartbeat_sec=ttl_ms / 1000 if lasts else None,
        job=_job(entry),
    )


def _job(entry: Any) -> Job | None:
    try:
        return parse(entry) if isinstance(entry, bytes) else None
    except MalformedJob:
        return None


def _worker_ids(client: redis.Redis, keys: Keys) -> tuple[list[str], bool]:
    """Return ids, in order, and whether those are all."""
    found: set[str] = set()
    deadline = time.monotonic() + LONGEST_SEARCH
    for glob in (keys.processing_glob, keys.heartbeat_glob):
        cursor: Any = 0
        while True:
            answer: Any = client.scan(cursor, match=glob, count=SCAN_COUNT)
            cursor, names = answer
            found.update(_ids(keys, names))
            if cursor == 0:
                break
            if time.monotonic() > deadline or len(found) > MOST_WORKERS:
                return sorted(found)[:MOST_WORKERS], False
    return sorted(found)[:MOST_WORKERS], len(found) <= MOST_WORKERS


def _ids(keys: Keys, names: Iterable[bytes]) -> Iterable[str]:
    for name in names:
        worker_id = keys.worker_of(name.decode(errors="replace"))
        if worker_id is not None:
            yield worker_id
