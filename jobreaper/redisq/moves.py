"""What becomes of a job that has to be tried again, or was left in the list of a dead worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from jobreaper.exceptions import MalformedJob
from jobreaper.redisq.dead_letters import DeadLetter
from jobreaper.redisq.job import Job, parse

if TYPE_CHECKING:
    from jobreaper.redisq.keys import Keys


class DeadReason(StrEnum):
    """``reason`` of a dead letter."""

    MALFORMED = "malformed"
    FAILED = "failed"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """The verdict of the reaper on an entry in the list of the dead worker ``worker_id``.

    ``text`` goes to the list ``target``. ``reason`` is empty if that is the ``queue`` of the job,
    and says otherwise why it is the dead-letter list. ``job`` is the job as it was found, or
    ``None`` if the entry is malformed; then the queue is empty.
    """

    worker_id: str
    entry: bytes
    target: str
    text: bytes
    queue: str = ""
    job: Job | None = None
    reason: str = ""
    detail: str = ""


def tried_again(job: Job, queue: str) -> tuple[Job, bytes]:
    """Return the job and its entry for one more attempt from ``queue``.

    Raises:
        MalformedJob: it cannot be written as JSON.
    """
    again = replace(job, retries=job.retries + 1, origin_queue=queue)
    try:
        return again, again.encode()
    # Python reads some JSON that it does not write, such as 1e999, or what is nested very deeply.
    except (ValueError, RecursionError):
        raise MalformedJob("it cannot be written again") from None


def verdict(entry: bytes, worker_id: str, keys: Keys, *, max_retries: int) -> Move:
    """Return where an entry goes whose worker is dead: to its queue while it has retries left."""
    try:
        job = parse(entry)
    except MalformedJob as error:
        return _bury(entry, worker_id, keys, DeadReason.MALFORMED, str(error))
    queue = keys.queue_of(job)
    if job.retries >= max_retries:
        detail = f"its worker was lost, and it had no retry left after {job.retries}"
        return _bury(entry, worker_id, keys, DeadReason.WORKER_LOST, detail, queue, job)
    try:
        _, text = tried_again(job, queue)
    except MalformedJob as error:
        return _bury(entry, worker_id, keys, DeadReason.MALFORMED, str(error), queue, job)
    return Move(worker_id=worker_id, entry=entry, target=queue, text=text, queue=queue, job=job)


def _bury(
    entry: bytes,
    worker_id: str,
    keys: Keys,
    reason: DeadReason,
    detail: str,
    queue: str = "",
    job: Job | None = None,
) -> Move:
    letter = DeadLetter(entry=entry, reason=reason, detail=detail, queue=queue, worker_id=worker_id)
    return Move(
        worker_id=worker_id,
        entry=entry,
        target=keys.dead_letter,
        text=letter.encode(),
        queue=queue,
        job=job,
        reason=reason,
        detail=detail,
    )
