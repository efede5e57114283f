"""One log line for each action: a past-tense event name and ``key=value`` pairs.

The same pairs are on the record as ``record.jobreaper``, a dict, for formatters that want them. The
logger is named after the module that acted: ``jobreaper.leases``, ``jobreaper.reaper`` and so on.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final

from jobreaper import signals

leases = logging.getLogger("jobreaper.leases")
queue = logging.getLogger("jobreaper.queue")
heart = logging.getLogger("jobreaper.heartbeat")
reaper = logging.getLogger("jobreaper.reaper")
control = logging.getLogger("jobreaper.control")

# When a pass takes more jobs than this at once, their own lines are at level DEBUG: after an outage
# they would take longer than the reap.
MOST_LINES: Final = 100


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
        (signals.heartbeat_failed, _beat_failed),
        (signals.job_reaped, _reaped),
        (signals.job_changed_by_hand, _changed_by_hand),
        (signals.pause_changed, _pause_changed),
        (signals.pass_finished, _pass_finished),
    ):
        signal.connect(receiver, dispatch_uid=f"{signals.BATCH_UID}logs.{receiver.__name__}")


def _log(logger: logging.Logger, level: int, event: str, **pairs: Any) -> None:
    if logger.isEnabledFor(level):
        words = (f"{key}={_word(value)}" for key, value in pairs.items() if value is not None)
        text = " ".join(words)
        logger.log(level, "%s %s", event, text, extra={"jobreaper": {"event": event, **pairs}})


def _word(value: Any) -> str:
    """Return a value as one word, so that a line stays one line and can be parsed."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r'[\s"]', text) else text


def _of(lease: Any) -> dict[str, Any]:
    return {
        "table": lease.table.name,
        "job": lease.pk,
        "stage": lease.stage,
        "attempt": lease.attempt,
        "epoch": lease.epoch,
        "worker": lease.worker,
    }


def _claimed(lease: Any, **_: Any) -> None:
    if not lease.in_batch:
        _log(leases, logging.INFO, "job_claimed", **_of(lease))


def _finished(lease: Any, details: Any, **_: Any) -> None:
    if lease.in_batch:
        return
    duration = {"duration_ms": details["duration_ms"]}
    _log(leases, logging.INFO, "job_finished", **_of(lease), **duration)


def _enqueued(pks: Any, **_: Any) -> None:
    if len(pks) == 1:
        _log(queue, logging.INFO, "job_enqueued", job=pks[0])
    else:
        _log(queue, logging.INFO, "jobs_enqueued", count=len(pks))


def _claimed_many(leases: Any, **_: Any) -> None:
    _batch("claimed", leases)


def _finished_many(leases: Any, **_: Any) -> None:
    _batch("finished", leases)


def _batch(did: str, held: Any) -> None:
    """Log one line for a batch, and one for each of its jobs at level DEBUG: a fast worker would
    spend most of its time on INFO lines.
    """
    first = held[0]
    if len(held) == 1:
        _log(leases, logging.INFO, f"job_{did}", **_of(first))
        return
    pairs = {"table": first.table.name, "count": len(held), "worker": first.worker}
    _log(leases, logging.INFO, f"jobs_{did}", **pairs)
    if leases.isEnabledFor(logging.DEBUG):
        for lease in held:
            _log(leases, logging.DEBUG, f"job_{did}", **_of(lease))


def _why(details: Any) -> dict[str, Any]:
    return {key: details[key] for key in ("duration_ms", "fail_code", "next_earliest_run_at")}


def _retried(lease: Any, details: Any, **_: Any) -> None:
    _log(leases, logging.WARNING, "job_retried", **_of(lease), **_why(details))


def _failed(lease: Any, details: Any, **_: Any) -> None:
    _log(leases, logging.ERROR, "job_failed", **_of(lease), **_why(details))


def _released(lease: Any, **_: Any) -> None:
    _log(leases, logging.INFO, "job_released", **_of(lease))


def _lost(lease: Any, reason: str, status: Any, **_: Any) -> None:
    _log(heart, logging.WARNING, "lease_lost", **_of(lease), reason=reason, status=status)


def _rejected(lease: Any, verb: str, status: Any, epoch: Any, **_: Any) -> None:
    present = {"present_status": status, "present_epoch": epoch}
    _log(leases, logging.WARNING, "stale_write_rejected", **_of(lease), verb=verb, **present)


def _beat_failed(alias: str, table: str, error: Exception, leases: int, **_: Any) -> None:
    pairs = {"database": alias, "table": table, "leases": leases, "error": repr(error)}
    _log(heart, logging.WARNING, "heartbeat_failed", **pairs)


def _reaped(table: str, jobs: Any, **_: Any) -> None:
    requeued = [job for job in jobs if job.fail_code is None]
    failed = [job for job in jobs if job.fail_code]
    _reaped_alike(logging.INFO, "requeued", table, requeued)
    _reaped_alike(logging.WARNING, "failed_by_reaper", table, failed)


def _reaped_alike(level: int, did: str, table: str, jobs: Any) -> None:
    if len(jobs) > MOST_LINES:
        _log(reaper, level, f"jobs_{did}", table=table, count=len(jobs))
        level = logging.DEBUG
    for job in jobs if reaper.isEnabledFor(level) else ():
        pk, *rest = job
        pairs = dict(zip(job._fields[1:], rest, strict=True))
        _log(reaper, level, f"job_{did}", table=table, job=pk, **pairs)


def _changed_by_hand(table: str, pk: Any, event: str, by: str, reason: Any, **_: Any) -> None:
    _log(control, logging.INFO, "job_changed_by_hand", table=table, job=pk, did=event, by=by)


def _pause_changed(table: str, name: str, paused: bool, by: Any, reason: Any, **_: Any) -> None:
    event = "paused" if paused else "resumed"
    _log(control, logging.INFO, event, table=table, name=name, by=by, reason=reason)


def _pass_finished(result: Any, trigger: str, **_: Any) -> None:
    level = logging.ERROR if result.all_errors else logging.INFO
    _log(
        reaper,
        level,
        "pass_finished",
        trigger=trigger,
        requeued=result.requeued,
        failed=result.failed,
        held=result.held_reason,
        duration_ms=round(result.duration_ms, 1),
        errors="; ".join(result.all_errors) or None,
    )
