"""For the tests of your own jobs: run them, see what was enqueued, and let happen to them what will
happen: a lost lease, a worker that is killed or frozen, a second end. See docs/testing.md.
"""

from jobreaper.testing.crashes import finish_twice, freeze, kill_worker_at, lose_lease
from jobreaper.testing.enqueued import Enqueued, enqueued
from jobreaper.testing.running import Ran, make_due, run_due

__all__ = [
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
