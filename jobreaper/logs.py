"""One log line for each action: an event name in the past tense and ``key=value`` pairs.

Formatters find the same pairs in the dict ``record.jobreaper``. The logger is named after the
module that acted: ``jobreaper.leases``, ``jobreaper.reaper`` and so on. No line contains a payload,
a ``fail_reason`` or an operator's words, because many people can read a log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, Final, NamedTuple

from jobreaper import signals
from jobreaper.db import in_words
from jobreaper.protocol.holding import holding_of


class Event(NamedTuple):
    """How an event is logged: the logger below ``jobreaper``, the level, the keys it may have."""

    logger: str
    level: int
    keys: tuple[str, ...]


_LEASE: Final = ("table", "job", "stage", "attempt", "epoch", "worker")
_BATCH: Final = ("table", "count", "worker")
_ENDED: Final = (*_LEASE, "duration_ms", "fail_code", "next_earliest_run_at")
_REAPED: Final = (
    *("table", "job", "stage", "reason", "fail_code", "locked_by", "attempt", "epoch"),
    *("overdue_ms", "run_again_in_ms"),
)
_PAUSE: Final = ("table", "name", "by")

# docs/logging.md has the same table, and a test compares the two.
EVENTS: Final[Mapping[str, Event]] = {
    "job_enqueued": Event("queue", INFO, ("job",)),
    "jobs_enqueued": Event("queue", INFO, ("count",)),
    "job_claimed": Event("leases", INFO, _LEASE),
    "jobs_claimed": Event("leases", INFO, _BATCH),
    "job_finished": Event("leases", INFO, (*_LEASE, "duration_ms")),
    "jobs_finished": Event("leases", INFO, _BATCH),
    "job_retried": Event("leases", WARNING, _ENDED),
    "job_failed": Event("leases", ERROR, _ENDED),
    "job_released": Event("leases", INFO, _LEASE),
    "lease_lost": Event("heartbeat", WARNING, (*_LEASE, "reason", "status")),
    "stale_write_rejected": Event(
        "leases", WARNING, (*_LEASE, "verb", "present_status", "present_epoch")
    ),
    "ending_refused": Event("leases", ERROR, (*_LEASE, "verb", "error")),
    "heartbeat_failed": Event("heartbeat", WARNING, ("database", "table", "leases", "error")),
    "job_requeued": Event("reaper", INFO, _REAPED),
    "jobs_requeued": Event("reaper", INFO, ("table", "count")),
    "job_failed_by_reaper": Event("reaper", WARNING, _REAPED),
    "jobs_failed_by_reaper": Event("reaper", WARNING, ("table", "count")),
    "job_changed_by_hand": Event("control", INFO, ("table", "job", "did", "by")),
    "change_refused": Event("control", ERROR, ("table", "job", "did", "by", "error")),
    "paused": Event("control", INFO, _PAUSE),
    "resumed": Event("control", INFO, _PAUSE),
    # At level ERROR if the pass had errors.
    "pass_finished": Event(
        "reaper", INFO, ("trigger", "requeued", "failed", "held", "duration_ms", "errors")
    ),
}

# If a pass takes more jobs than this at once, their own lines are at level DEBUG: after an outage,
# writing them would take longer than the reap.
MOST_LINES: Final = 100

_BREAKS_A_WORD: Final = re.compile(r'[\s"]').search

# Whether a key outside the list raises, as in this package's tests. Otherwise it is left out: a
# mistake must not lose the line, nor log a value that nobody has considered.
strict = False


def connect() -> None:
    """Subscribe to core code's signals; called once from ``AppConfig.ready()``."""
    for signal, receiver in (
        (signals.job_claimed, _claimed),
        (signals.job_finished, _finished),
        (signals.job_retried, _retried),
        (signals.job_failed, _failed),
        (signals.job_released, _released),
        (signals.jobs_enqueued, _enqueued),
        (signals.jobs_claimed, _claimed_many),
        (signals.jobs_finished, _finished_many),
        (signals.lease_lost, _lost),
        (signals.stale_write_rejected, _rejected),
        (signals.ending_refused, _refused),
        (signals.heartbeat_failed, _beat_failed),
        (signals.job_reaped, _reaped),
        (signals.job_changed_by_hand, _changed_by_hand),
        (signals.change_refused, _change_refused),
        (signals.pause_changed, _pause_changed),
        (signals.pass_finished, _pass_finished),
    ):
        signal.connect(receiver, dispatch_uid=signals.OwnReceiver(f"logs.{receiver.__name__}"))


def _log(
    event: str, *, level: int | None = None, exc_info: BaseException | None = None, **pairs: Any
) -> None:
    name, usual_level, keys = EVENTS[event]
    logger = logging.getLogger(f"jobreaper.{name}")
    level = usual_level if level is None else level
    if not logger.isEnabledFor(level):
        return
    if strict and not pairs.keys() <= set(keys):
        raise ValueError(f"{event} must not be logged with {sorted(pairs.keys() - set(keys))}")
    known = {key: value for key, value in pairs.items() if key in keys}
    text = " ".join([f"{key}={_word(value)}" for key, value in known.items() if value is not None])
    # The event is part of the template: that is what collectors of errors group lines by.
    template = f"{event} %s"
    extra = {"jobreaper": {"event": event, **known}}
    logger.log(level, template, text, exc_info=exc_info, extra=extra)


def _word(value: Any) -> str:
    """Return a value as one word, so that a line stays one line and can be parsed. Control
    characters are escaped.
    """
    text = str(value)
    if type(value) is int:
        return text
    # A composite key.
    if isinstance(value, tuple):
        text = json.dumps(value, ensure_ascii=False, default=str)
    is_plain = text.isprintable()
    if text and is_plain and not _BREAKS_A_WORD(text):
        return text
    return json.dumps(text, ensure_ascii=not is_plain)


def _of(lease: Any) -> dict[str, Any]:
    held = holding_of(lease)
    return {
        "table": held.table.name,
        "job": held.pk,
        "stage": held.stage,
        "attempt": held.attempt,
        "epoch": held.epoch,
        "worker": held.worker,
    }


def _claimed(lease: Any, **_: Any) -> None:
    if not holding_of(lease).in_batch:
        _log("job_claimed", **_of(lease))


def _finished(lease: Any, details: Any, **_: Any) -> None:
    if holding_of(lease).in_batch:
        return
    duration = {"duration_ms": details["duration_ms"]}
    _log("job_finished", **_of(lease), **duration)


def _enqueued(pks: Any, **_: Any) -> None:
    if len(pks) == 1:
        _log("job_enqueued", job=pks[0])
    else:
        _log("jobs_enqueued", count=len(pks))


def _claimed_many(leases: Any, **_: Any) -> None:
    _batch("claimed", leases)


def _finished_many(leases: Any, **_: Any) -> None:
    _batch("finished", leases)


def _batch(did: str, held: Any) -> None:
    """Log one line for a batch, and one at level DEBUG for each of its jobs: a fast worker would
    spend most of its time on INFO lines.
    """
    first = held[0]
    if len(held) == 1:
        _log(f"job_{did}", **_of(first))
        return
    pairs = {"table": holding_of(first).table.name, "count": len(held), "worker": first.worker}
    _log(f"jobs_{did}", **pairs)
    if logging.getLogger("jobreaper.leases").isEnabledFor(DEBUG):
        for lease in held:
            _log(f"job_{did}", level=DEBUG, **_of(lease))


def _why(details: Any) -> dict[str, Any]:
    return {key: details[key] for key in ("duration_ms", "fail_code", "next_earliest_run_at")}


def _retried(lease: Any, details: Any, **_: Any) -> None:
    _log("job_retried", **_of(lease), **_why(details))


def _failed(lease: Any, details: Any, **_: Any) -> None:
    _log("job_failed", exc_info=holding_of(lease).raised, **_of(lease), **_why(details))


def _released(lease: Any, **_: Any) -> None:
    _log("job_released", **_of(lease))


def _lost(lease: Any, reason: str, status: Any, **_: Any) -> None:
    _log("lease_lost", **_of(lease), reason=reason, status=status)


def _rejected(lease: Any, verb: str, status: Any, epoch: Any, **_: Any) -> None:
    present = {"present_status": status, "present_epoch": epoch}
    _log("stale_write_rejected", **_of(lease), verb=verb, **present)


def _refused(lease: Any, verb: str, error: Exception, **_: Any) -> None:
    _log("ending_refused", **_of(lease), verb=verb, error=in_words(error))


def _beat_failed(alias: str, table: str, error: Exception, leases: int, **_: Any) -> None:
    line = in_words(error)
    _log("heartbeat_failed", database=alias, table=table, leases=leases, error=line)


def _reaped(table: str, jobs: Any, **_: Any) -> None:
    _reaped_alike("requeued", table, [job for job in jobs if job.fail_code is None])
    _reaped_alike("failed_by_reaper", table, [job for job in jobs if job.fail_code])


def _reaped_alike(did: str, table: str, jobs: Any) -> None:
    level = EVENTS[f"job_{did}"].level
    if len(jobs) > MOST_LINES:
        _log(f"jobs_{did}", table=table, count=len(jobs))
        level = DEBUG
    for job in jobs if logging.getLogger("jobreaper.reaper").isEnabledFor(level) else ():
        pk, *rest = job
        pairs = dict(zip(job._fields[1:], rest, strict=True))
        _log(f"job_{did}", level=level, table=table, job=pk, **pairs)


def _changed_by_hand(table: str, pk: Any, event: str, by: str, reason: Any, **_: Any) -> None:
    _log("job_changed_by_hand", table=table, job=pk, did=event, by=by)


def _change_refused(table: str, pk: Any, event: str, by: str, error: Exception, **_: Any) -> None:
    _log("change_refused", table=table, job=pk, did=event, by=by, error=in_words(error))


def _pause_changed(table: str, name: str, paused: bool, by: Any, **_: Any) -> None:
    _log("paused" if paused else "resumed", table=table, name=name, by=by)


def _pass_finished(result: Any, trigger: str, **_: Any) -> None:
    _log(
        "pass_finished",
        level=ERROR if result.all_errors else None,
        trigger=trigger,
        requeued=result.requeued,
        failed=result.failed,
        held=result.held_reason,
        duration_ms=round(result.duration_ms, 1),
        errors="; ".join(result.all_errors) or None,
    )


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``at``, ``level``, ``logger``, then the event and its pairs, or
    ``message`` for a line that is not an event::

        LOGGING = {
            "formatters": {"json": {"()": "jobreaper.logs.JsonFormatter"}},
            ...
        }
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        pairs = getattr(record, "jobreaper", None) or {"message": record.getMessage()}
        line = {
            "at": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": record.levelname,
            "logger": record.name,
            **{key: value for key, value in pairs.items() if value is not None},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
