"""A backend of ``django.tasks`` for the settings of tests. See docs/testing.md."""

from __future__ import annotations

from typing import Any

from jobreaper.backend import JobreaperBackend
from jobreaper.backend.compat import Task


class EagerBackend(JobreaperBackend):
    """Runs each task as soon as it is enqueued, in the same thread and transaction, as Django's
    ``ImmediateBackend`` does: ``enqueue()`` returns the result of a task that has ended. A task has
    one attempt, and its exception is in ``errors``. A task for later waits.

    It is for tests that expect the work of a task to be done. The tasks are jobs all the same, so
    ``get_result()``, ``run_after`` and ``jobreaper.testing`` work too.
    """

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        """Create the task's job, run it if it is due, and return its result.

        Raises:
            InvalidTask, TypeError, ValueError: as with ``JobreaperBackend``.
        """
        from jobreaper import claim
        from jobreaper.backend import running
        from jobreaper.testing.running import run

        result = super().enqueue(task, args, kwargs)
        # Perhaps a worker runs beside the tests, and was faster.
        if (lease := claim(self.model, result.id)) is None:
            return result
        error = run(lease, running.handler_of(task), retry=False)
        result.refresh()
        # In a transaction, its end has not been announced.
        if running.forget(lease) is not None:
            running.announce_end(result, error)
        return result
