"""Waiting in a coroutine for what waits for the database.

That runs where Django's own asynchronous methods run it: by ``sync_to_async()``, in the thread that
has the connections of this task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from asgiref.sync import sync_to_async

T = TypeVar("T")


async def to_its_end(function: Callable[[], T]) -> T:
    """Call ``function`` by ``sync_to_async()`` and return its result. If this task is cancelled
    meanwhile, wait for the end of the call all the same, and raise the ``CancelledError`` then: the
    task has to know what it has claimed or ended.
    """
    outcome: Future[T] = Future()

    def call() -> None:
        if not outcome.done():
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

    cancelled: asyncio.CancelledError | None = None
    while not outcome.done():
        try:
            # After a cancellation, the first call runs on, or it never starts. A second one waits
            # for it, since all calls of a task have one thread.
            await sync_to_async(call)()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return outcome.result()
