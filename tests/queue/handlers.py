"""Handlers for tests and the benchmark."""

import asyncio
import ctypes
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from jobreaper.queue.handlers import job_handler


@job_handler("noop")
def noop(job: Any, lease: Any) -> None:
    """Nothing."""


@job_handler("until-told")
def until_told(job: Any, lease: Any) -> None:
    """Say that it has begun, and end when told to."""
    print("began", job.pk, flush=True)
    sys.stdin.readline()


@job_handler("ledger")
def write_ledger(job: Any, lease: Any) -> None:
    """Write the effect and the end of the job in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger VALUES (%s, %s)", [str(job.pk), lease.epoch])
        lease.finish()


@job_handler("crawl")
def crawl(job: Any, lease: Any) -> None:
    """Hang in the first attempt; in the next ones get on for longer than a job may stall."""
    steps = job.payload["steps"]
    for done in range(steps):
        lease.progress(done, steps, f"step {done}")
        if lease.epoch == 1 and done == 2:
            print("hangs", flush=True)
            while True:
                time.sleep(0.05)
        time.sleep(0.1)
    lease.progress(steps, steps, "whole")


def _loop() -> None:
    while True:
        pass


def _wait_for_pool() -> None:
    # Python waits for these threads when it exits.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 10**6).result()


HANGS: Final[dict[str, Callable[[], object]]] = {
    "loop": _loop,
    "sleep": lambda: time.sleep(10**6),
    "c": lambda: ctypes.CDLL(None).pause(),
    "pool": _wait_for_pool,
    # No other thread of the interpreter runs meanwhile.
    "hog": lambda: re.match("(a+)+$", "a" * 64 + "b"),
}


@job_handler("who")
def who(job: Any, lease: Any) -> None:
    """Say which process runs it, and wait to be told."""
    # Unbuffered: several processes share these.
    os.write(1, f"runs in {os.getpid()}\n".encode())
    os.read(0, len("end\n"))


async def _swallow() -> None:
    while True:
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            continue


async def _block_loop() -> None:
    time.sleep(10**6)


async def _block_other_thread() -> None:
    await sync_to_async(time.sleep)(10**6)


ASYNC_HANGS: Final[dict[str, Callable[[], Awaitable[None]]]] = {
    "wait": lambda: asyncio.sleep(10**6),
    "swallow": _swallow,
    "block": _block_loop,
    "thread": _block_other_thread,
}


@job_handler("hang-async")
async def hang_async(job: Any, lease: Any) -> None:
    """Never end, in the event loop."""
    print("hangs", job.payload["how"], flush=True)
    await ASYNC_HANGS[job.payload["how"]]()


@job_handler("hang")
def hang(job: Any, lease: Any) -> None:
    """Never end."""
    print("hangs", job.payload["how"], flush=True)
    HANGS[job.payload["how"]]()


@job_handler("short")
def take_a_moment(job: Any, lease: Any) -> None:
    """Take some milliseconds, and write the ledger."""
    time.sleep(0.01)
    write_ledger(job, lease)


@job_handler("paced")
def take_so_long(job: Any, lease: Any) -> None:
    """Take so many seconds, and write the ledger."""
    time.sleep(job.payload["sec"])
    write_ledger(job, lease)


@job_handler("long")
def go_on(job: Any, lease: Any) -> None:
    """Take longer than any worker lives, until the third run."""
    runs = (lease.state or {"runs": 0})["runs"] + 1
    lease.save_state({"runs": runs})
    while runs < 3:
        if lease.stopping and job.payload["asks"]:
            lease.release()
            return
        time.sleep(0.02)
    write_ledger(job, lease)
