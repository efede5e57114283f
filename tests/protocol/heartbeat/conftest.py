"""Leases beaten in this process, and a look at what the heartbeat thread sends."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobreaper import Lease, conf
from jobreaper.protocol import heartbeat
from tests.committed import transactional_db  # noqa: F401
from tests.waiting import until

Row = dict[str, Any]
Sql = Callable[..., list[Row]]

THREAD = "jobreaper-heartbeat"


def last_beat(lease: Lease) -> datetime | None:
    """When the lease was renewed, by its row. Its end does not tell: it moves only now and then."""
    found: datetime | None = (
        type(lease.job).objects.values_list("last_heartbeat_at", flat=True).get(pk=lease.pk)
    )
    return found


@pytest.fixture(autouse=True)
def quick_beats() -> Iterator[None]:
    """Beats often enough for a test to wait for them; leases that no busy machine lets lapse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEARTBEAT_SEC", "0.1")
        patch.setenv("DEFAULT_LEASE_SEC", "30")
        conf.reset()
        yield
    heartbeat.heart.stop()
    conf.reset()


@dataclass
class Beats:
    """The statements that the heartbeat thread has sent, and the server's processes behind it."""

    backends: list[int] = field(default_factory=list)
    sent: list[tuple[str, Row]] = field(default_factory=list)

    def to(self, table: str) -> list[Row]:
        """The parameters of each heartbeat statement sent to `table`, oldest first."""
        return [params for text, params in self.sent if f'UPDATE "{table}"' in text]

    def wait_for(self, table: str, more: int = 2) -> list[Row]:
        """Wait for that many more beats of `table`; return their parameters."""
        before = len(self.to(table))
        until(lambda: len(self.to(table)) >= before + more)
        return self.to(table)[before:]


@pytest.fixture
def beats() -> Iterator[Beats]:
    """Listen to the heartbeat thread's own connections; Django tells of each that is made."""
    seen = Beats()

    def listen(connection: BaseDatabaseWrapper, **_: object) -> None:
        if threading.current_thread().name == THREAD:
            seen.backends.append(connection.connection.info.backend_pid)
            if record not in connection.execute_wrappers:
                connection.execute_wrappers.append(record)

    def record(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(text, params, many, context)
        # Wrapped, it has its parameters by position: the keys are the first list.
        keys = next((each for each in params or () if isinstance(each, list)), [])
        seen.sent.append((text, {"ids": keys}))
        return answer

    connection_created.connect(listen)
    yield seen
    connection_created.disconnect(listen)
