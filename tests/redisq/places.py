"""Where jobs are, seen by a foreign client."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import redis

from jobreaper.redisq.dead_letters import DeadLetter, decode
from jobreaper.redisq.job import Job, parse
from jobreaper.redisq.keys import Keys


def job(number: object = 1, **values: Any) -> Job:
    """A job as a producer makes it."""
    return Job(id=f"job-{number}", filepath=f"/data/{number}.pdf", **values)


def push(client: redis.Redis, queue: str, *jobs: Job | bytes) -> None:
    """Push jobs as a producer does."""
    client.lpush(queue, *(each if isinstance(each, bytes) else each.encode() for each in jobs))


class Places:
    """Everything that the names of `keys` contain."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client
        self.keys = keys

    def entries(self, name: str) -> list[bytes]:
        """The entries of a list, the next one to be fetched first."""
        return list(reversed(self.client.lrange(name, 0, -1)))

    def queue(self, priority: str = "high") -> list[bytes]:
        return self.entries(self.keys.queues[priority])

    def completed(self) -> list[bytes]:
        return self.entries(self.keys.completed)

    def dead(self) -> list[DeadLetter]:
        return [decode(entry) for entry in self.entries(self.keys.dead_letter)]

    def delayed(self, priority: str = "high") -> list[bytes]:
        members = self.client.zrange(self.keys.delayed(self.keys.queues[priority]), 0, -1)
        return [member.partition(b"|")[2] for member in members]

    def processing(self) -> dict[str, list[bytes]]:
        """The entries of each worker's list."""
        names = [name.decode() for name in self.client.scan_iter(self.keys.processing_glob)]
        return {str(self.keys.worker_of(name)): self.entries(name) for name in names}

    def everything(self) -> list[bytes]:
        """Every entry, wherever it is."""
        found: list[bytes] = [*self.completed(), *(letter.entry for letter in self.dead())]
        for priority in self.keys.queues:
            found += self.queue(priority) + self.delayed(priority)
        for held in self.processing().values():
            found += held
        return found

    def count(self) -> Counter[str]:
        """How often each job is anywhere, by its id."""
        return ids(self.everything())

    def be_late(self, worker_id: str) -> None:
        """Let the heartbeat of a worker run out."""
        self.client.delete(self.keys.heartbeat(worker_id))

    def make_due(self) -> None:
        """Let the wait of every delayed job be over."""
        for queue in self.keys.queues.values():
            name = self.keys.delayed(queue)
            for member in self.client.zrange(name, 0, -1):
                self.client.zadd(name, {member: 0})


def ids(entries: Iterable[bytes]) -> Counter[str]:
    """How often each job is among `entries`, by its id."""
    return Counter(parse(entry).id for entry in entries)
