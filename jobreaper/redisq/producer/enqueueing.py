"""A file becomes a job once: for each version of it, whichever producer sees it first.

Which files are known is a hash in Redis, beside the queues: the path, and the size and time of the
last change. The job and this note are written by one script, so that neither is there without the
other. The script counts the rate too, for all producers under one key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import redis

from jobreaper.ids import new_id
from jobreaper.redisq import trace_ids
from jobreaper.redisq.config import Config
from jobreaper.redisq.job import Job, now
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.producer.scanning import Found

# Files a command: few enough that Redis answers others meanwhile.
BATCH: Final = 200

T = TypeVar("T")

_FOLDER: Final = resources.files("jobreaper.redisq") / "scripts"


class Push(NamedTuple):
    """What became of a batch: the jobs that were pushed, the files for which the rate limit left
    nothing, and for how many seconds it leaves nothing.
    """

    jobs: list[Job]
    left: list[Found]
    wait_sec: float


class Enqueuer:
    """Makes jobs of files. For any number of threads."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._config = config
        self._keys = Keys.of(config)
        self.known = self._keys.named("known_files")
        self._enqueue: Any = client.register_script(_source("enqueue"))
        self._forget: Any = client.register_script(_source("forget"))

    def unknown(self, files: Sequence[Found]) -> list[Found]:
        """Return those of ``files`` that have no job in their present version."""
        if not files:
            return []
        versions: Any = self._client.hmget(self.known, [file.path for file in files])
        return [
            file
            for file, version in zip(files, versions, strict=True)
            if version != file.version.encode()
        ]

    def push(self, files: Sequence[Found]) -> Push:
        """Push a job for each of ``files`` that is not known, as far as the rate limit allows."""
        queues = list(self._keys.queues.values())
        creations = [trace_ids.begin() for _ in files]
        jobs = [self._job(file, each) for file, each in zip(files, creations, strict=True)]
        arguments: list[Any] = [self._config.producer.rate_limit_per_sec]
        for file, job in zip(files, jobs, strict=True):
            number = queues.index(job.origin_queue) + 1
            arguments += [file.path, file.version, number, job.encode()]
        wait_ms, *results = self._enqueue(
            keys=[self.known, self._keys.rate_limit, *queues], args=arguments
        )
        pairs = list(zip(files, jobs, results, strict=True))
        for creation, (_, job, result) in zip(creations, pairs, strict=True):
            if result == 1:
                creation.end(job.origin_queue, job.id)
        return Push(
            jobs=[job for _, job, result in pairs if result == 1],
            left=[file for file, _, result in pairs if result == -1],
            wait_sec=wait_ms / 1000,
        )

    def forget_below(self, directory: str) -> int:
        """Forget files below ``directory`` that are gone, and return how many those were. A file
        that comes back under its name is a job again.
        """
        inside = os.fsencode(directory.rstrip("/") + "/")
        forgotten = 0
        for some in batches(self._client.hscan_iter(self.known, count=BATCH)):
            gone: list[bytes] = []
            for path, version in some:
                if path.startswith(inside) and not os.path.lexists(path):
                    gone += [path, version]
            if gone:
                forgotten += self._forget(keys=[self.known], args=gone)
        return forgotten

    def _job(self, file: Found, creation: trace_ids.Creation) -> Job:
        priority = self._priority(file.path)
        return Job(
            id=str(new_id()),
            filepath=file.path,
            filesize=file.size,
            priority=priority,
            creation_time=now(),
            trace_id=creation.trace_id,
            span_id=creation.span_id,
            origin_queue=self._keys.queues[priority],
        )

    def _priority(self, path: str) -> str:
        if path.lower().endswith(self._config.producer.high_priority_exts):
            return self._config.worker.priorities[0]
        return self._config.producer.default_priority


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """Yield ``items`` in lists of ``size``; the last one may be shorter."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
