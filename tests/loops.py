"""Coroutines in an event loop of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

T = TypeVar("T")


def in_a_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Return what ``work`` returns. The connections that it has opened are closed."""

    async def run() -> T:
        try:
            return await work()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run())
