"""The names of everything in Redis, from the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobreaper.redisq.config import Config
    from jobreaper.redisq.job import Job

# What SCAN's MATCH would take for more than itself.
_SPECIAL: Final = re.compile(r"([\\*?\[\]^])")


@dataclass(frozen=True)
class Keys:
    """The names of one configuration. ``queues`` has the queue of each priority, with those that
    workers look at first, in their order.
    """

    queues: Mapping[str, str]
    completed: str
    dead_letter: str
    rate_limit: str
    processing_pattern: str
    heartbeat_pattern: str
    fallback_priority: str

    @classmethod
    def of(cls, config: Config) -> Keys:
        """Return the names that ``config`` gives."""
        worker = config.worker
        order = [*worker.priorities, *(p for p in worker.queues if p not in worker.priorities)]
        return cls(
            queues={priority: worker.queues[priority] for priority in order},
            completed=worker.completed_list,
            dead_letter=worker.dead_letter_list,
            rate_limit=config.producer.rate_limit_key,
            processing_pattern=worker.processing_list_pattern,
            heartbeat_pattern=worker.heartbeat_key_pattern,
            fallback_priority=worker.priorities[-1],
        )

    def processing(self, worker_id: str) -> str:
        """Return the processing list of a worker."""
        return self.processing_pattern.replace("%s", worker_id)

    def heartbeat(self, worker_id: str) -> str:
        """Return the heartbeat key of a worker."""
        return self.heartbeat_pattern.replace("%s", worker_id)

    @property
    def processing_glob(self) -> str:
        """What SCAN matches to find every processing list."""
        return _SPECIAL.sub(r"\\\1", self.processing_pattern).replace("%s", "*")

    @property
    def heartbeat_glob(self) -> str:
        """What SCAN matches to find every heartbeat."""
        return _SPECIAL.sub(r"\\\1", self.heartbeat_pattern).replace("%s", "*")

    def worker_of(self, key: str) -> str | None:
        """Return the id of the worker whose processing list or heartbeat ``key`` is, if any."""
        for pattern in (self.processing_pattern, self.heartbeat_pattern):
            head, _, tail = pattern.partition("%s")
            long_enough = len(key) > len(head) + len(tail)
            if long_enough and key.startswith(head) and key.endswith(tail):
                return key[len(head) : len(key) - len(tail)]
        return None

    def named(self, name: str) -> str:
        """Return the key ``name`` of this package's own, beside the list of completed jobs: such as
        ``jobqueue:seen``.
        """
        return self.completed.rpartition(":")[0] + ":" * (":" in self.completed) + name

    @staticmethod
    def delayed(queue: str) -> str:
        """Return the sorted set of the jobs of ``queue`` that wait for their next attempt."""
        return f"{queue}:delayed"

    def queue_of(self, job: Job) -> str:
        """Return the queue to which ``job`` goes back: its origin where that is a queue of this
        configuration, else the one of its priority, else the last that workers look at. An entry
        could name any key as its origin.
        """
        if job.origin_queue in self.queues.values():
            return job.origin_queue
        return self.queues.get(job.priority, self.queues[self.fallback_priority])
