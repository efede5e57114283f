"""For the tests of your own jobs: run them, see what was enqueued, and let happen to them what will
happen: a lost lease, a worker that is killed or frozen, a second end. See docs/testing.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobreaper.testing.crashes import finish_twice, freeze, kill_worker_at, lose_lease
    from jobreaper.testing.eager import EagerBackend
    from jobreaper.testing.queued import Enqueued, enqueued
    from jobreaper.testing.running import Ran, make_due, run_due

__all__ = [
    "EagerBackend",
    "Enqueued",
    "Ran",
    "enqueued",
    "finish_twice",
    "freeze",
    "kill_worker_at",
    "lose_lease",
    "make_due",
    "run_due",
]

# Imported when asked for: settings may name the backend before there are models, and without
# django.tasks there is none.
_HOMES = {
    "crashes": "finish_twice freeze kill_worker_at lose_lease",
    "eager": "EagerBackend",
    "queued": "Enqueued enqueued",
    "running": "Ran make_due run_due",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'jobreaper.testing' has no attribute {name!r}")
    return getattr(import_module(f"jobreaper.testing.{_HOME_OF[name]}"), name)
