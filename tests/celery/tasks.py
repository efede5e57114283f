"""The tasks that a test's worker processes run: each job's payload says what it does."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import shared_task
from django.db import connection, transaction

from jobreaper import LeasedTask
from tests.celery.files import begun

LONGEST_SEC = 60


def wait(job: Any, lease: Any) -> None:
    """Work until the file of the payload is there, as code that knows of its lease does."""
    _wait(job, lease.check)


def wait_connected(job: Any, lease: Any) -> None:
    """The same, and keep the connection open."""
    file = Path(job.payload["file"])
    ends_at = time.monotonic() + LONGEST_SEC
    while not file.exists():
        lease.check()
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def wait_unaware(job: Any, lease: Any) -> None:
    """The same, as code that never asks."""
    _wait(job, lambda: None)


def wait_in_transaction(job: Any, lease: Any) -> None:
    """The same, with the job's row locked by the work's own transaction."""
    with transaction.atomic():
        type(job).objects.select_for_update().get(pk=job.pk)
        Path(job.payload["file"]).with_suffix(".locked").touch()
        _wait(job, lease.check)


def wait_patiently(job: Any, lease: Any) -> None:
    """The same, and a soft time limit is only a hint to come to an end."""
    try:
        _wait(job, lease.check)
    except SoftTimeLimitExceeded:
        return


def _wait(job: Any, each_time: Callable[[], object]) -> None:
    file = Path(job.payload["file"])
    # A connection for each job that waits would be more than a server has.
    if not connection.in_atomic_block:
        connection.close()
    ends_at = time.monotonic() + LONGEST_SEC
    while not file.exists():
        each_time()
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def write_names(job: Any, lease: Any) -> None:
    """Put on record what runs the job."""
    job.payload["names"] = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "beats": sum(t.name == "jobreaper-heartbeat" for t in threading.enumerate()),
    }
    job.save()


def crash(job: Any, lease: Any) -> None:
    ctypes.string_at(0)


def be_killed(job: Any, lease: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(job: Any, lease: Any) -> None:
    os._exit(7)


def exit_(job: Any, lease: Any) -> None:
    sys.exit(3)


def fork(job: Any, lease: Any) -> None:
    if os.fork() != 0:
        os.wait()


def fail(job: Any, lease: Any) -> None:
    raise ValueError("it had to fail")


def raise_bare(job: Any, lease: Any) -> None:
    raise BaseException("nobody's kind")


DEEDS: dict[str, Callable[[Any, Any], None]] = {
    deed.__name__: deed
    for deed in (
        wait,
        wait_connected,
        wait_unaware,
        wait_in_transaction,
        wait_patiently,
        write_names,
        crash,
        be_killed,
        leave,
        exit_,
        fork,
        fail,
        raise_bare,
    )
}


def _do(job: Any, lease: Any) -> None:
    begun(job.payload, job.attempt_count).touch()
    DEEDS[job.payload["deed"]](job, lease)


@shared_task(base=LeasedTask, model="media.Job", stage="deed")
def do(job: Any, lease: Any) -> None:
    _do(job, lease)


@shared_task(base=LeasedTask, model="media.Job", stage="poison")
def do_poison(job: Any, lease: Any) -> None:
    _do(job, lease)


@shared_task(base=LeasedTask, model="media.Job", stage="interruptible", interrupt=True)
def do_interruptible(job: Any, lease: Any) -> None:
    _do(job, lease)


@shared_task(base=LeasedTask, model="media.Job", stage="acks-late", acks_late=True)
def do_acks_late(job: Any, lease: Any) -> None:
    _do(job, lease)
