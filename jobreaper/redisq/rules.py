"""Rules about several keys of the configuration at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jobreaper.redisq.durations import format_duration
from jobreaper.redisq.keys import Keys

if TYPE_CHECKING:
    from jobreaper.redisq.config import Config

# A worker that is busy for this long without a heartbeat is not dead.
SHORTEST_HEARTBEAT_TTL_SEC = 5.0


class Fault(NamedTuple):
    """What is wrong with the key at ``path``. ``rests_on`` are the keys that the rule reads."""

    path: tuple[str, ...]
    message: str
    rests_on: tuple[tuple[str, ...], ...] = ()


def faults(config: Config) -> Iterator[Fault]:
    """Yield each rule that ``config`` breaks."""
    yield from _heartbeat(config)
    yield from _priorities(config)
    yield from _names(config)
    yield from _patterns(config)


def _heartbeat(config: Config) -> Iterator[Fault]:
    worker = config.worker
    ttl, wait = ("worker", "heartbeat_ttl"), ("worker", "brpoplpush_timeout")
    if worker.heartbeat_ttl < SHORTEST_HEARTBEAT_TTL_SEC:
        yield Fault(ttl, f"must be {format_duration(SHORTEST_HEARTBEAT_TTL_SEC)} or more")
    elif worker.brpoplpush_timeout > worker.heartbeat_ttl / 2:
        half = format_duration(worker.heartbeat_ttl / 2)
        yield Fault(wait, f"must be at most half of worker.heartbeat_ttl, which is {half}", (ttl,))
    base, longest = ("worker", "backoff", "base"), ("worker", "backoff", "max")
    if worker.backoff.max < worker.backoff.base:
        yield Fault(longest, "must not be shorter than worker.backoff.base", (base,))


def _priorities(config: Config) -> Iterator[Fault]:
    worker = config.worker
    priorities, queues = ("worker", "priorities"), ("worker", "queues")
    if not worker.priorities:
        yield Fault(priorities, "must name at least one priority")
    if len(set(worker.priorities)) < len(worker.priorities):
        yield Fault(priorities, "must name each priority once")
    missing = [name for name in worker.priorities if name not in worker.queues]
    if missing:
        yield Fault(queues, f"has no queue for the priority {', '.join(missing)}", (priorities,))
    if config.producer.default_priority not in worker.queues:
        path = ("producer", "default_priority")
        yield Fault(path, "must be a priority with a queue in worker.queues", (queues,))


def _names(config: Config) -> Iterator[Fault]:
    """Two of these under one name would take each other's entries."""
    queues = {("worker", "queues"): list(config.worker.queues.values())}
    others = {
        ("worker", "completed_list"): config.worker.completed_list,
        ("worker", "dead_letter_list"): config.worker.dead_letter_list,
        ("producer", "rate_limit_key"): config.producer.rate_limit_key,
    }
    taken: dict[str, tuple[str, ...]] = {}
    for path, names in queues.items():
        for name in names:
            if name in taken:
                yield Fault(path, f"names the list {name!r} twice")
            taken[name] = path
    for path, name in others.items():
        if name in taken:
            before = taken[name]
            yield Fault(path, f"is {name!r}, as {'.'.join(before)} is already", (before,))
        taken[name] = path


def _patterns(config: Config) -> Iterator[Fault]:
    """The reaper takes what a pattern matches for the list of a worker."""
    worker = config.worker
    lists = ("worker", "processing_list_pattern")
    beats = ("worker", "heartbeat_key_pattern")
    if worker.processing_list_pattern == worker.heartbeat_key_pattern:
        yield Fault(beats, "must differ from worker.processing_list_pattern", (lists,))
    queues = worker.queues.values()
    names = (*queues, *map(Keys.delayed, queues), worker.completed_list, worker.dead_letter_list)
    rests_on = (
        ("worker", "queues"),
        ("worker", "completed_list"),
        ("worker", "dead_letter_list"),
    )
    head, _, tail = worker.processing_list_pattern.partition("%s")
    matched = [
        name
        for name in names
        if len(name) > len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
    ]
    if matched:
        yield Fault(lists, f"matches the list {matched[0]!r} too", rests_on)
