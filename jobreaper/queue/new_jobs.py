"""What ``enqueue()`` and ``enqueue_many()`` are given, checked and as their statement takes it.

Jobs that are created together are often alike except for their payloads. What they have in common
is checked and sent only once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils import timezone

from jobreaper import conf
from jobreaper.db import array_of
from jobreaper.ids import new_ids
from jobreaper.models import Job
from jobreaper.queue.dedupe import make_dedupe_key, payload_json
from jobreaper.states import DEFAULT_QUEUE, Dedupe
from jobreaper.tables import table_of
from jobreaper.tracecontext import current_traceparent
from jobreaper.values import LARGEST_COUNT, LARGEST_PRIORITY, LONGEST_NAME, SMALLEST_PRIORITY

# The kinds that were checked last are remembered. A call rarely has more.
REMEMBERED_KINDS: Final = 1000


class Kind(NamedTuple):
    """What a job has in common with others. ``run_at`` is in ISO 8601."""

    type: str
    stage: str
    queue: str
    org_id: str | None
    priority: int
    max_attempts: int
    run_at: str | None


@dataclass(slots=True)
class NewJobs:
    """Jobs to be created, by columns: thousands of rows would be objects that the garbage collector
    looks at again and again. The payloads are JSON.
    """

    ids: list[UUID] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)
    dedupe_keys: list[str | None] = field(default_factory=list)
    # The places of those that replace the queued job with the same key.
    replacing: list[int] = field(default_factory=list)

    def at(self, places: Collection[int]) -> NewJobs:
        """Return the jobs at these places."""
        return NewJobs(
            [self.ids[n] for n in places],
            [self.kinds[n] for n in places],
            [self.payloads[n] for n in places],
            [self.dedupe_keys[n] for n in places],
        )


def one_job(*arguments: Any) -> NewJobs:
    """Return a job with these arguments of ``enqueue()``, in their order.

    Raises:
        BadPayload, ValueError: an argument is invalid.
    """
    kind, payload, key, _ = checked_job(*arguments)
    return NewJobs(new_ids(1), [kind], [payload], [key])


def new_jobs(given: Iterable[Mapping[str, Any]]) -> NewJobs:
    """Return jobs, each with these arguments of ``enqueue()``.

    Raises:
        BadPayload, ValueError, TypeError: an argument is invalid.
    """
    jobs = NewJobs()
    for n, arguments in enumerate(given):
        kind, payload, key, replaces = checked_job(**arguments)
        jobs.kinds.append(kind)
        jobs.payloads.append(payload)
        jobs.dedupe_keys.append(key)
        if replaces:
            jobs.replacing.append(n)
    jobs.ids = new_ids(len(jobs.kinds))
    return jobs


def checked_job(
    type: str,
    payload: Any = None,
    org_id: object = None,
    run_at: datetime | None = None,
    stage: str | None = None,
    max_attempts: int | None = None,
    priority: int = 0,
    dedupe: str | None = None,
    dedupe_key: str | None = None,
    queue: str = DEFAULT_QUEUE,
) -> tuple[Kind, str, str | None, bool]:
    """Check these arguments of ``enqueue()``. Return the kind of the job, its payload as JSON, its
    dedupe key, and whether it replaces a queued job that has this key.

    Raises:
        BadPayload, ValueError: an argument is invalid.
    """
    payload = {} if payload is None else payload
    text = payload_json(payload)
    org_id = None if org_id in (None, "") else str(org_id)
    key = None
    if dedupe is not None:
        if dedupe not in list(Dedupe):
            words = ", ".join(repr(word.value) for word in Dedupe)
            raise ValueError(f"dedupe must be None, {words}, not {dedupe!r}")
        key = make_dedupe_key(type, org_id, payload) if dedupe_key is None else dedupe_key
        # It contains the payload, and is indexed by its digest: it may be long.
        _check_text("dedupe_key", key)
    if max_attempts is None:
        max_attempts = conf.settings().max_attempts
    moment = None if run_at is None else _in_utc(run_at).isoformat()
    of_kind = (type, stage, queue, org_id, priority, max_attempts, moment)
    try:
        kind = _kind(*of_kind)
    except TypeError:
        # One of them cannot be remembered.
        kind = _kind.__wrapped__(*of_kind)
    return kind, text, key, key is not None and dedupe == Dedupe.REPLACE


# True is not 1 here.
@lru_cache(maxsize=REMEMBERED_KINDS, typed=True)
def _kind(
    type: str,
    stage: str | None,
    queue: str,
    org_id: str | None,
    priority: int,
    max_attempts: int,
    run_at: str | None,
) -> Kind:
    _check_name("type", type)
    _check_name("queue", queue)
    for name, text in (("stage", stage), ("org_id", org_id)):
        if text is not None:
            _check_name(name, text)
    _check_number("max_attempts", max_attempts, 1, LARGEST_COUNT)
    _check_number("priority", priority, SMALLEST_PRIORITY, LARGEST_PRIORITY)
    return Kind(
        type, type if stage is None else stage, queue, org_id, priority, max_attempts, run_at
    )


def params_of(jobs: NewJobs) -> dict[str, Any]:
    """Return the parameters of the statements that create jobs."""
    kinds, keys = jobs.kinds, jobs.dedupe_keys
    places = {kinds[0]: 1}
    are_alike = kinds.count(kinds[0]) == len(kinds)
    kinds_of = [] if are_alike else [places.setdefault(kind, len(places) + 1) for kind in kinds]
    return {
        "ids": array_of([pk.hex for pk in jobs.ids]),
        "kinds_of": None if are_alike else array_of(kinds_of),
        "payloads": f"[{','.join(jobs.payloads)}]",
        "dedupe_keys": None if keys.count(None) == len(keys) else _json(keys),
        "kinds": _json([kind._asdict() for kind in places]),
        "traceparent": current_traceparent(),
        "notify": conf.settings().notify,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check_name(name: str, text: object) -> None:
    _check_text(name, text)
    if isinstance(text, str) and len(text) > LONGEST_NAME:
        problem = f"{name} has {len(text)} characters, and {LONGEST_NAME} are the most"
        raise ValueError(f"{problem}: {text[:40]!r}…")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text, and not empty: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half a surrogate pair: {value!r}") from None
    if "\x00" in value:
        raise ValueError(f"{name} has a NUL character: {value!r}")


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def _in_utc(moment: object) -> datetime:
    if not isinstance(moment, datetime):
        raise ValueError(f"run_at must be a datetime, not {moment!r}")
    try:
        aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
        # The statement's answer has it in the connection's time zone.
        aware.astimezone(ZoneInfo(table_of(Job).connection().timezone_name))
        return aware.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"run_at is not in the years 1 to 9999 in UTC: {moment!r}") from None
