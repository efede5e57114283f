"""``ahold()``: ``hold()`` for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType

from django.core.exceptions import SynchronousOnlyOperation
from django.db import models

from jobreaper.exceptions import LeaseLost
from jobreaper.protocol import heartbeat
from jobreaper.protocol.awaited import to_its_end
from jobreaper.protocol.claim import hold
from jobreaper.protocol.holding import Holding, holding_of
from jobreaper.protocol.lease import Lease


@asynccontextmanager
async def ahold(
    model: type[models.Model], pk: object, *, worker: str | None = None
) -> AsyncIterator[Lease]:
    """Claim a job, send heartbeats while the block runs, and finish the job, as ``hold()`` does.

    If the lease is lost, the task is cancelled in the block, and ``LeaseLost`` leaves the block in
    place of the ``CancelledError``. If somebody else cancels the task, the job is released, and the
    ``CancelledError`` propagates.

    Raises:
        NotClaimed: the job cannot be claimed.
        LeaseLost: the lease was lost before the job was finished.
    """
    held = hold(model, pk, worker=worker)
    leases: list[Lease] = []
    try:
        await to_its_end(lambda: leases.append(held.__enter__()))
        with _CancelledIfLost(holding_of(leases[0])):
            yield leases[0]
    except BaseException as error:
        told = type(error), error, error.__traceback__
        if leases and isinstance(error, GeneratorExit):
            # A coroutine that is dropped, perhaps after its loop has ended, can wait for nothing.
            with suppress(SynchronousOnlyOperation):
                held.__exit__(*told)
        elif leases:
            await to_its_end(lambda: held.__exit__(*told))
        raise
    else:
        await to_its_end(lambda: held.__exit__(None, None, None))
    finally:
        # Even if nothing could be sent any more.
        heartbeat.heart.remove(*map(holding_of, leases))


class _CancelledIfLost:
    """A block in which the task is cancelled when a lease is lost. As with ``asyncio.timeout()``,
    another exception then replaces the ``CancelledError``, unless somebody else has cancelled the
    task too.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._loss: LeaseLost | None = None
        self._is_left = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("ahold() must be used in an asyncio task")
        self._task, self._loop = task, asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._holding.on_lost = self._tell
        if (loss := self._holding.loss) is not None:
            # Nobody was told.
            self._tell(loss)

    def _tell(self, loss: LeaseLost) -> None:
        # The loop may have been closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, loss)

    def _cancel(self, loss: LeaseLost) -> None:
        if self._loss is None and not self._is_left:
            self._loss = loss
            self._task.cancel(str(loss))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_left = True
        self._holding.on_lost = None
        if self._loss is None:
            return
        is_ours_alone = self._task.uncancel() <= self._cancelling
        if is_ours_alone and isinstance(error, asyncio.CancelledError):
            raise self._loss from error
