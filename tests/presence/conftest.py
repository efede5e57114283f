"""Long leases, so that nothing happens because one ran out, and workers that a test may kill."""

from collections.abc import Iterator

import pytest

from jobreaper import conf
from tests.committed import foreign_client, sql, transactional_db
from tests.processes.conftest import job, ledger, proxy, row, start, start_worker

__all__ = [
    "foreign_client",
    "job",
    "ledger",
    "proxy",
    "row",
    "sql",
    "start",
    "start_worker",
    "transactional_db",
]


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A test that sets them too does so with the same fixture: two would undo each other's.
    monkeypatch.setenv("DEFAULT_LEASE_SEC", "300")
    monkeypatch.setenv("HEARTBEAT_SEC", "15")
    monkeypatch.setenv("PRESENCE_GRACE_SEC", "0.5")
    conf.reset()
    yield
    monkeypatch.undo()
    conf.reset()
