"""The statements of presence: each names its parts."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from psycopg.sql import SQL, Composable, Literal

from jobreaper import sql

WATCHER: Final = "watcher"
# Whoever would look if the watcher were gone.
CANDIDATE: Final = "candidate"


def _key(of: Composable) -> Composable:
    return sql.compose("fragments/presence_key", {"worker": of})


def _locks() -> Composable:
    return sql.compose("fragments/presence_locks", {})


@cache
def _rendered(name: str) -> str:
    return sql.render(
        f"statements/{name}",
        {
            "presence_locks": _locks(),
            "key_of_worker": _key(SQL("%(worker)s")),
            "key_of_row": _key(SQL("worker.worker")),
            "watcher_key": _key(Literal(WATCHER)),
            "candidate_key": _key(Literal(CANDIDATE)),
        },
    )


# Hold a worker's lock on this session.
lock: Final = partial(_rendered, "presence_lock")
# Find the workers whose lock is free.
look: Final = partial(_rendered, "presence_look")
# Take the lock of a worker that is thought to be gone.
gone: Final = partial(_rendered, "presence_gone")
# Become the one who looks.
elect: Final = partial(_rendered, "presence_elect")


def state(late_sec: float, lease_sec: float) -> str:
    """How a row of ``jobreaper_workers`` stands, as an expression of a query that reads them."""
    return sql.render("fragments/worker_state", _parts_of_state(late_sec, lease_sec))


def count(late_sec: float, lease_sec: float) -> str:
    """Count the workers of each kind by how they stand."""
    parts = _parts_of_state(late_sec, lease_sec)
    return sql.render(
        "statements/presence_count", {"worker_state": sql.compose("fragments/worker_state", parts)}
    )


def _parts_of_state(late_sec: float, lease_sec: float) -> dict[str, Composable]:
    return {
        "late_sec": Literal(late_sec),
        "lease_sec": Literal(lease_sec),
        "presence_locks": _locks(),
        "key_of_worker": _key(SQL("jobreaper_workers.worker")),
    }
