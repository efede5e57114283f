"""The tasks that this process has seen, by path."""

from __future__ import annotations

from typing import Any, Final

from jobreaper.backend.compat import Task

tasks: Final[dict[str, Task[..., Any]]] = {}


def note(task: Task[..., Any]) -> None:
    """Remember a task, so that workers run its jobs."""
    # Not one whose code is gone, see results.task_of().
    if not getattr(task.func, "is_gone", False):
        tasks[task.module_path] = task
