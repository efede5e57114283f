"""A task in a module that a worker does not import at its start."""

from importlib import import_module
from typing import Any

from jobreaper.backend.compat import PACKAGE

task: Any = import_module(PACKAGE).task


@task
def hidden(n: int) -> int:
    return n + 1
