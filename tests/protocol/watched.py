"""What presence adds to the machine of `test_state_machine.py`: workers that hold their locks or
have lost them, and a watcher.

A worker that claims is here, and whenever time passes, the watcher has looked. A worker that dies
is one whose sessions end all at once. Its leases stay where they are, so that a later step of
theirs is that of a worker that was taken for dead and lives. One that is frozen takes no step, and
its sessions stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from jobreaper.presence.watcher import Silent, gone, look, take_back
from jobreaper.states import Reason
from tests.protocol.machine import Machine
from tests.protocol.model import GRACE_HOURS, WORKERS

# What happens between the watcher's look and its taking back.
MEANWHILE = st.sampled_from(["nothing", "cancel", "come back"])

Session = psycopg.Connection[Any]


@dataclass
class ModelWorker:
    """What the server knows of a worker."""

    sessions: list[Session] = field(default_factory=list)
    is_noted: bool = False
    silent_at: float | None = None
    is_gone: bool = False

    @property
    def is_here(self) -> bool:
        return bool(self.sessions)


class Watched(Machine):
    """The rules of presence. `connect` is set by the test."""

    connect: Callable[[], Session]

    def __init__(self) -> None:
        super().__init__()
        self.sql("DELETE FROM jobreaper_workers")
        self.workers = {name: ModelWorker() for name in WORKERS}

    def teardown(self) -> None:
        for worker in self.workers.values():
            for session in worker.sessions:
                session.close()

    def _is_silent(self, worker: ModelWorker) -> bool:
        return worker.is_noted and not worker.is_gone and not worker.is_here

    @rule(name=st.sampled_from(WORKERS))
    def take_presence(self, name: str) -> None:
        """On one more session, be it the first one, one for another purpose, or a new one."""
        worker = self.workers[name]
        session = self.connect()
        found = session.execute("SELECT jobreaper_worker_here(%s)", [name]).fetchone()
        assert found == (True,)
        worker.sessions.append(session)
        worker.is_noted = True
        worker.is_gone = False
        worker.silent_at = None

    def _cut(self, session: Session) -> None:
        """End a session, and wait until the server has done so."""
        self.sql("SELECT pg_terminate_backend(%s, 10000)", session.info.backend_pid)
        session.close()

    def be_here(self, name: str) -> None:
        if not self.workers[name].is_here:
            self.take_presence(name)

    @rule(name=st.sampled_from(WORKERS), dies=st.booleans())
    def lose_connections(self, name: str, dies: bool) -> None:
        """All of them where it dies, otherwise one."""
        sessions = self.workers[name].sessions
        for session in sessions[:] if dies else sessions[:1]:
            self._cut(session)
            sessions.remove(session)

    @rule(hours=st.integers(1, 4))
    def let_time_pass(self, hours: int) -> None:
        self._look()
        super().let_time_pass(hours)
        self.sql(
            "UPDATE jobreaper_workers SET silent_since = silent_since - %s * interval '1 hour'",
            hours,
        )

    def _look(self) -> list[Silent]:
        """Look, and return who is gone."""
        expected = set()
        for name, worker in self.workers.items():
            if not self._is_silent(worker):
                continue
            if worker.silent_at is None:
                worker.silent_at = self.now
            elif self.now - worker.silent_at >= GRACE_HOURS:
                expected.add(name)
        found = gone(*look(connection))
        assert {silent.worker for silent in found} == expected
        return found

    @rule(meanwhile=MEANWHILE)
    def watch(self, meanwhile: str) -> None:
        """Take back what the workers held that are gone; between the look and that, an operator
        cancels a job of theirs, or they are here again.
        """
        for silent in self._look():
            held = [k for k, job in self.model.items() if job.locked_by == silent.worker]
            if meanwhile == "cancel" and held:
                self.cancel_by_hand(held[0])
            if meanwhile == "come back":
                self.take_presence(silent.worker)
            self._take_back(silent)

    def _epochs(self) -> set[tuple[int, int]]:
        return {(key, row["lease_epoch"]) for key, row in self.rows.all().items()}

    def _take_back(self, silent: Silent) -> None:
        worker = self.workers[silent.worker]
        before = self._epochs()
        taken = take_back(connection, silent)
        changed = {key for key, _ in self._epochs() - before}
        if worker.is_here:
            assert taken is None
            assert not changed, "a job was taken from a worker whose lock is held"
            return
        held = {k: j for k, j in self.model.items() if j.running and j.locked_by == silent.worker}
        assert changed == set(held)
        assert taken == len(held)
        for job in held.values():
            job.reap(self.now, Reason.WORKER_LOST)
        worker.is_gone = True

    @invariant()
    def the_workers_are_as_the_model_has_them(self) -> None:
        rows = self.sql("SELECT worker, silent_since, gone_at FROM jobreaper_workers")
        assert {
            row["worker"]: (row["silent_since"] is not None, row["gone_at"] is not None)
            for row in rows
        } == {
            name: (worker.silent_at is not None, worker.is_gone)
            for name, worker in self.workers.items()
            if worker.is_noted
        }
