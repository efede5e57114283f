"""What the worker's main process does with a message of a leased task.

It sees what the child cannot see: that the child died, exceeded its hard time limit or was
terminated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from jobreaper.celery import children, shutdown
from jobreaper.control import by_hand
from jobreaper.db import in_words
from jobreaper.db.own import bounded_connection
from jobreaper.states import EventType
from jobreaper.tables import table_of

logger = logging.getLogger(__name__)

# A child that is stopped notices it at its next step of Python code.
WORD_OF_CANCEL_SEC: Final = 5.0


class LeasedRequest(Request):
    """A message of a ``LeasedTask`` in the worker's main process."""

    worker_pid: Any  # celery-types declares pids as text

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A child has taken the message: watch the child from now on."""
        super().on_accepted(pid, time_accepted)
        children.watch(pid)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """After the hard limit, take the lease back before the child is killed."""
        if not soft:
            children.give_back_before_kill(
                self.worker_pid, f"hard time limit of {timeout:g} s exceeded"
            )
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Take back the jobs of a lost child whose death was not noticed at once."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError) and self.worker_pid:
            # Without billiard's prefix and task number.
            how = str(error).removeprefix("Worker exited prematurely: ").partition(" Job: ")[0]
            children.give_back_after_kill(self.worker_pid, how)
        return super().on_failure(exc_info, *args, **kwargs)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """``revoke(terminate=True)``: cancel the job, so that it does not run again.

        The signal is sent first, so that a function that has locked its row releases it. A thread
        cannot receive a signal; its function is told at its next heartbeat.
        """
        try:
            with suppress(NotImplementedError):
                super().terminate(pool, signal)
        finally:
            self._cancel_job(partial(by_hand.cancel, event=EventType.JOB_CANCELLED))

    def revoked(self) -> bool:
        """Return whether the message must not run. If it was revoked, cancel the job unless it is
        already running.

        An expired message says nothing about its job, which is sent again.
        """
        if not super().revoked():
            return False
        if not self.maybe_expire():
            self._cancel_job(by_hand.cancel_queued)
        return True

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """Stop the task because the worker ends or has lost its broker.

        A cold shutdown calls this before anything else knows about it. A worker that has lost its
        broker continues.
        """
        shutdown.begin(for_sec=WORD_OF_CANCEL_SEC)
        super().cancel(*args, **kwargs)

    def _cancel_job(self, cancel: Callable[..., object]) -> None:
        if len(self.args) != 1 or self.kwargs:
            return  # it concerns no job: the task would refuse it
        try:
            model = self.task.job_model()  # type: ignore[attr-defined]
            with bounded_connection(table_of(model).alias):
                cancel(model, self.args, by=self.hostname, reason="revoked")
        # Whatever happens, such as an argument that cannot be a key, the worker continues.
        except Exception as error:
            logger.error("revoked, but %s was not cancelled: %s", self.args, in_words(error))
