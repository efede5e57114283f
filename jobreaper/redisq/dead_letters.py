"""The entries of the dead-letter list: why a job is there, and the job as it was.

An entry that is no job has to be kept as well, so each is wrapped: in ``entry`` where it is text,
and in ``entry_base64`` where it is not.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final

from jobreaper.exceptions import MalformedJob
from jobreaper.redisq.job import Job, now, parse

# In characters: a detail may quote an exception.
LONGEST_DETAIL: Final = 1000

_TEXTS: Final = ("reason", "detail", "at", "queue", "worker_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A job that is not tried again. ``reason`` is a word, and ``detail`` a sentence; ``at`` is a
    time of RFC 3339. What is not known is empty.
    """

    entry: bytes
    reason: str = ""
    detail: str = ""
    at: str = ""
    queue: str = ""
    worker_id: str = ""

    @property
    def job(self) -> Job | None:
        """The job, or ``None`` if the entry is malformed."""
        try:
            return parse(self.entry)
        except MalformedJob:
            return None

    def encode(self) -> bytes:
        """Return the letter as the entry of the dead-letter list."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        values["detail"] = self.detail[:LONGEST_DETAIL]
        values["at"] = self.at or now()
        try:
            values["entry"] = self.entry.decode()
        except UnicodeDecodeError:
            values["entry_base64"] = base64.b64encode(self.entry).decode()
        # Escaped, since a detail may quote what is not Unicode.
        return json.dumps(values, separators=(",", ":")).encode()


def decode(entry: bytes) -> DeadLetter:
    """Return the letter in ``entry``. What is not one, such as a job that a foreign program pushed
    there, is a letter without a reason.
    """
    try:
        values = json.loads(entry)
        raw = (
            values["entry"].encode()
            if "entry" in values
            else base64.b64decode(values["entry_base64"], validate=True)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        return DeadLetter(entry=entry)
    known = {name: each for name in _TEXTS if isinstance(each := values.get(name), str)}
    return DeadLetter(entry=raw, **known)
