"""``enqueue()`` and ``enqueue_many()`` for coroutines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from jobreaper.models import Job
from jobreaper.queue.enqueueing import EnqueueResult, enqueue, enqueue_many

P = ParamSpec("P")
T = TypeVar("T")


def _like(
    function: Callable[P, T],
) -> Callable[[Callable[..., Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator that gives a function the parameters of ``function``."""
    return wraps(function, assigned=())


@_like(enqueue)
async def aenqueue(*args: Any, **kwargs: Any) -> Job:
    """Create a job and return it, as ``enqueue()`` does. Django has no transactions in coroutines,
    so the job is committed at once.
    """
    return await sync_to_async(enqueue)(*args, **kwargs)


@_like(enqueue_many)
async def aenqueue_many(*args: Any, **kwargs: Any) -> EnqueueResult:
    """Create thousands of jobs, either all or none, as ``enqueue_many()`` does. The iterable is
    consumed in another thread, so it may send queries.
    """
    return await sync_to_async(enqueue_many)(*args, **kwargs)
