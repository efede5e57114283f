"""What the worker's main process does for a leased task: its side of a message.

It sees what the child cannot: that the child died, overran its hard time limit or was terminated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from jobreaper import control
from jobreaper.celery import children, shutdown
from jobreaper.db import in_words
from jobreaper.heartbeat import bounded_connection
from jobreaper.states import EventType
from jobreaper.tables import table_of

logger = logging.getLogger(__name__)

# A child that is stopped hears of it at its next step of Python code.
WORD_OF_CANCEL_SEC: Final = 5.0


class LeasedRequest(Request):
    """A message of a ``LeasedTask`` in the worker's main process."""

    worker_pid: Any  # celery-types takes pids for text

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A child has taken the message: watch the child from now on."""
        super().on_accepted(pid, time_accepted)
        children.watch(pid)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """On the hard limit, take the lease back before the child is killed for it."""
        if not soft:
            children.condemn(self.worker_pid, f"hard time limit of {timeout:g} s exceeded")
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Take back what a lost child held, where its death was not seen at once."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError) and self.worker_pid:
            # Without billiard's preface and its own number of the task.
            how = str(error).removeprefix("Worker exited prematurely: ").partition(" Job: ")[0]
            children.bury(self.worker_pid, how)
        return super().on_failure(exc_info, *args, **kwargs)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """``revoke(terminate=True)``: cancel the job, so that it does not run again.

        The signal goes first: a function that holds its row locked must let go of it. A thread
        cannot be sent one, and its function is told at its next beat.
        """
        try:
            with suppress(NotImplementedError):
                super().terminate(pool, signal)
        finally:
            self._cancel_job(partial(control.cancel, event=EventType.JOB_CANCELLED))

    def revoked(self) -> bool:
        """Return whether the message is not to be run; where somebody revoked it, cancel the job
        unless it runs already.

        A message that has expired is no word about its job, which is sent again.
        """
        if not super().revoked():
            return False
        if not self.maybe_expire():
            self._cancel_job(control.cancel_queued)
        return True

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        """Stop the task because the worker ends or has lost its broker, which is not its doing.

        A cold shutdown says so to its tasks first and to everybody else afterwards; a worker that
        has lost its broker goes on.
        """
        shutdown.begin(for_sec=WORD_OF_CANCEL_SEC)
        super().cancel(*args, **kwargs)

    def _cancel_job(self, cancel: Callable[..., object]) -> None:
        if len(self.args) != 1 or self.kwargs:
            return  # no word about any job: the task would refuse it
        try:
            model = self.task.job_model()  # type: ignore[attr-defined]
            with bounded_connection(table_of(model).alias):
                cancel(model, self.args, by=self.hostname, reason="revoked")
        # Whatever it is, such as an argument that cannot be a key: the worker goes on.
        except Exception as error:
            logger.error("revoked, but %s was not cancelled: %s", self.args, in_words(error))
