"""The shop tells the office of tasks that fail."""

from typing import Any

from django.apps import AppConfig
from django.tasks.signals import (
    task_finished,
)

# Declared before there are models.
from tests.backend.bookshop import tasks

__all__ = ["Shop", "tasks"]


class Shop(AppConfig):
    """The shop's only app."""

    name = "tests.backend.bookshop"
    label = "bookshop"

    def ready(self) -> None:
        """Listen to tasks."""
        task_finished.connect(note_trouble)


def note_trouble(sender: Any, task_result: Any, **_: Any) -> None:
    from tests.backend.bookshop.models import Trouble

    for error in task_result.errors:
        kind = error.exception_class.__name__
        Trouble.objects.create(task=task_result.task.name, what=kind)
