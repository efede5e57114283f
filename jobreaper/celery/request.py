"""What the worker's main process does for a leased task: its side of a message.

It sees what the child cannot: that the child died, overran its hard time limit or was terminated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from django.db import Error, connections

from jobreaper import control
from jobreaper.celery import children
from jobreaper.states import EventType

logger = logging.getLogger(__name__)


class LeasedRequest(Request):
    """A message of a ``LeasedTask`` in the worker's main process."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A child has taken the message: watch the child from now on."""
        super().on_accepted(pid, time_accepted)
        children.watch(pid)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """On the hard limit, take the lease back before the child is killed for it."""
        if not soft:
            children.give_back(self.worker_pid, f"hard time limit of {timeout:g} s exceeded")
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Take back what a lost child held, where its death was not seen at once."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError) and self.worker_pid:
            children.give_back(self.worker_pid, str(error))
        return super().on_failure(exc_info, *args, **kwargs)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """``revoke(terminate=True)``: cancel the job, so that it does not run again."""
        _in_main_process(self._cancel_job)
        super().terminate(pool, signal)

    def _cancel_job(self) -> None:
        control.cancel(
            self.task.job_model(),
            self.args,
            by=self.hostname,
            reason="revoke(terminate=True)",
            event=EventType.JOB_CANCELLED,
        )


def _in_main_process(action: Callable[[], object]) -> None:
    """Run a short database action that must not stop the worker's event loop.

    Its connection is closed, since the children that are forked next would inherit it.
    """
    try:
        action()
    except Error:
        logger.exception("the database could not be reached; the lease does the rest")
    finally:
        connections.close_all()
