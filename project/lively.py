"""Fills a database with jobs in all states, workers and passes, for screenshots and browser tests.

Nothing in it is drawn by chance, so two screenshots differ only where the code does.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from django.db import connection
from django.utils.timezone import now

import jobreaper
from jobreaper.models import Job, JobEvent, Pause, ReaperPass, RefusedRow, Worker
from project.media.models import Job as MediaJob

JOBS: Final = 1000
TYPES: Final = ("mail.send", "report.monthly", "thumbnail", "invoice.pdf")
WORKERS: Final = tuple(f"web-{n}.example.com:{4700 + n}:9f9a9cf{n}" for n in range(1, 5))
ERRORS: Final = (
    ("SMTPServerDisconnected", "Connection unexpectedly closed"),
    ("TimeoutError", "no answer from the printer in 30 s"),
    ("timeout", "lease_expired"),
)

_ENDED = """
UPDATE jobreaper_jobs
   SET status = %s, attempt_count = %s, finished_at = now() - %s * interval '1 second',
       created_at = now() - %s * interval '1 second', fail_code = %s, fail_reason = %s,
       claimed_at = NULL, last_heartbeat_at = now() - %s * interval '1 second'
 WHERE id = %s
"""


def fill() -> None:
    """Make the jobs, workers, passes, pauses and rows that cannot be written."""
    _workers()
    _passes()
    jobs = [Job(type=TYPES[n % len(TYPES)], org_id=f"acme-{n % 7}") for n in range(JOBS)]
    Job.objects.bulk_create(jobs)
    for n, job in enumerate(jobs):
        _life(n, job)
    _stories()
    jobreaper.pause("invoice.pdf", by="ada", reason="The printer is being repaired")
    Pause.objects.update(at=now())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _execute(statement: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


def _workers() -> None:
    for n, worker in enumerate(WORKERS):
        Worker.objects.create(
            worker=worker,
            kind="work" if n < 3 else "celery",
            host=worker.partition(":")[0],
            pid=4701 + n,
            version=jobreaper.__version__,
            runs=", ".join(TYPES) if n < 3 else None,
            is_direct=False,
        )
    _execute(
        "UPDATE jobreaper_workers SET seen_at = now() - interval '70 s' WHERE worker = %s",
        WORKERS[2],
    )


def _passes() -> None:
    _execute(
        "INSERT INTO jobreaper_passes (started_at, duration_ms, trigger, reaper, counts, requeued, "
        "failed, held, held_reason) SELECT now() - n * interval '1 minute' - interval '20 s', "
        "5 + n %% 9, 'work', %s, '{}', CASE WHEN n %% 17 = 0 THEN 3 ELSE 0 END, "
        "CASE WHEN n %% 41 = 0 THEN 1 ELSE 0 END, n BETWEEN 200 AND 203, CASE WHEN n BETWEEN 200 "
        "AND 203 THEN 'PostgreSQL came up 3 s ago' END FROM generate_series(0, 1439) AS n",
        WORKERS[0],
    )


def _life(n: int, job: Job) -> None:
    """Give a job a state, by its number."""
    if n < 700:
        _end(n, job)
    elif n < 730:
        _run(n, job)
    elif n < 737:
        _lose(n, job)
    elif n < 760:
        _execute(
            "UPDATE jobreaper_jobs SET next_earliest_run_at = now() + %s * interval '1 min', "
            "attempt_count = 1, fail_code = 'TimeoutError', fail_reason = 'no answer' "
            "WHERE id = %s",
            n - 736,
            job.pk,
        )


def _end(n: int, job: Job) -> None:
    ago = (n * 97) % 3600 if n % 3 else (n * 977) % 86_000
    took_ms, waited_ms = 300 + (n * 131) % 9000, (n * 37) % 4000
    failed = n % 11 == 0
    code, reason = ERRORS[n % len(ERRORS)] if failed else (None, None)
    status = "failed" if failed else "cancelled" if n % 50 == 1 else "success"
    attempts = 3 if failed else 1
    _execute(_ENDED, status, attempts, ago, ago + 60, code, reason, ago, job.pk)
    kind = (
        "job:failed" if failed else "admin:cancelled" if status == "cancelled" else "job:finished"
    )
    _event(job, kind, ago, attempt=attempts, locked_by=WORKERS[n % 3], duration_ms=took_ms,
           queue_wait_ms=waited_ms, fail_code=code, fail_reason=reason)  # fmt: skip


def _run(n: int, job: Job) -> None:
    _execute(
        "UPDATE jobreaper_jobs SET status = 'processing', locked_by = %s, lease_epoch = 1, "
        "attempt_count = 1, claimed_at = now() - %s * interval '1 second', last_heartbeat_at = "
        "now() - %s * interval '1 second', lease_expires_at = now() + interval '4 min' "
        "WHERE id = %s",
        WORKERS[n % 4],
        20 + n % 90,
        90 if n % 10 == 0 else 3,
        job.pk,
    )


def _lose(n: int, job: Job) -> None:
    _execute(
        "UPDATE jobreaper_jobs SET status = 'processing', locked_by = %s, lease_epoch = 2, "
        "attempt_count = 2, claimed_at = now() - interval '9 min', last_heartbeat_at = now() - "
        "interval '6 min', lease_expires_at = now() - %s * interval '1 second', "
        "created_at = now() - interval '20 min' WHERE id = %s",
        WORKERS[2],
        60 + n % 40,
        job.pk,
    )
    _event(job, "job:enqueued", 1200)
    _event(job, "job:retried", 900, attempt=1, locked_by=WORKERS[1], duration_ms=280_000,
           queue_wait_ms=20_000, fail_code="TimeoutError", fail_reason="no answer in 30 s",
           next_in=120)  # fmt: skip


def _stories() -> None:
    """Make one job of another table that lost two workers and then failed, and a refused row."""
    job = MediaJob.objects.create(stage="clip", max_attempts=3)
    _execute(
        "UPDATE jobs SET status = 'failed', attempt_count = 3, reap_count = 2, lease_epoch = 6, "
        "created_at = now() - interval '50 min', finished_at = now() - interval '4 min', "
        "fail_code = 'timeout', fail_reason = 'lease_expired' WHERE id = %s",
        job.pk,
    )
    events = [
        ("reaper:requeued", 2400, 1, WORKERS[0], 2880, 2760, 2460),
        ("job:retried", 1500, 2, WORKERS[1], 2100, None, None),
        ("reaper:failed(timeout)", 240, 3, WORKERS[2], 1300, 700, 300),
    ]
    for kind, ago, attempt, worker, began, silent, expired in events:
        _event(job, kind, ago, attempt=attempt, locked_by=worker, reason="lease_expired",
               began=began, silent=silent, expired=expired,
               duration_ms=600_000 if silent is None else None,
               fail_code="FFmpegError" if silent is None else None,
               fail_reason="moov atom not found" if silent is None else None)  # fmt: skip
    RefusedRow.objects.create(
        table="jobs",
        verb="reap",
        key="4711",
        error='violates check constraint "jobs_duration_positive"',
        next_try_at=now(),
    )
    ReaperPass.objects.filter(requeued=3).update(counts={"jobreaper_jobs": {"requeued": 3}})


def _event(job: Any, kind: str, ago: float, **details: Any) -> None:
    times = {"began": "claimed_at", "silent": "last_heartbeat_at", "expired": "lease_expires_at"}
    at = now().timestamp()
    found = {name: value for name, value in details.items() if value is not None}
    for short, name in times.items():
        if short in found:
            found[name] = _iso(at - found.pop(short))
    if "next_in" in found:
        found["next_earliest_run_at"] = _iso(at - ago + found.pop("next_in"))
    data = {"type": kind, "table": job._meta.db_table, "details": found}
    event = JobEvent.objects.create(job_id=str(job.pk), data=data)
    _execute(
        "UPDATE job_events SET at = now() - %s * interval '1 second', data = %s WHERE id = %s",
        ago,
        json.dumps(data),
        event.pk,
    )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
