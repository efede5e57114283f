"""What calls cost: processor time of the client and of the server, WAL, statements, round trips.

Processor time moves much less than the clock on the wall where other work is done beside.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection


@dataclass
class Cost:
    """The cost of a call: counts, milliseconds, bytes. Of several, the lists have each one's."""

    statements: int = 0
    round_trips: int = 0
    client_ms: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)
    wal: list[int] = field(default_factory=list)

    def row(self, name: str, jobs: int = 1) -> tuple[object, ...]:
        """Return it as a row of a table, per job where there are several."""
        server = f"{statistics.median(self.server_ms) / jobs:.3f}" if self.server_ms else "?"
        return (
            name,
            self.statements,
            self.round_trips,
            f"{statistics.median(self.client_ms) / jobs:.3f}",
            server,
            f"{statistics.median(self.wal) / jobs:,.0f}",
        )


HEADINGS = ("", "statements", "round trips", "client ms", "server ms", "WAL bytes")


def measured(before: Callable[[], Any], call: Callable[[Any], Any], times: int) -> Cost:
    """Return what ``call`` costs with what ``before`` returns, after some calls to warm up."""
    for _ in range(3):
        call(before())
    given = before()
    with counted() as cost:
        call(given)
    for _ in range(times):
        given = before()
        written, server = wal_written(), server_ns()
        started = time.thread_time()
        call(given)
        cost.client_ms.append((time.thread_time() - started) * 1000)
        if server is not None:
            cost.server_ms.append(((server_ns() or 0) - server) / 1e6)
        cost.wal.append(wal_written() - written)
    return cost


@contextmanager
def counted() -> Iterator[Cost]:
    """Count the statements, and how often the server is waited for, by libpq's own trace."""
    cost = Cost()

    def count(execute: Any, *arguments: Any) -> Any:
        cost.statements += 1
        return execute(*arguments)

    connection.ensure_connection()
    with tempfile.TemporaryFile("w+") as file:
        connection.connection.pgconn.trace(file.fileno())
        try:
            with connection.execute_wrapper(count):
                yield cost
        finally:
            connection.connection.pgconn.untrace()
        file.seek(0)
        cost.round_trips = file.read().count("ReadyForQuery")


def server_ns() -> int | None:
    """Return the processor time of this session's server process, if it runs on this machine under
    Linux.
    """
    pid = connection.connection.info.backend_pid
    return process_ns(pid) if Path(f"/proc/{pid}/schedstat").exists() else None


def process_ns(pid: int) -> int:
    """Return the processor time of a process, with that of all its threads, under Linux."""
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        # A thread may have ended meanwhile.
        with suppress(OSError):
            total += int(file.read_text().split()[0])
    return total


def children_ns(pid: int) -> int:
    """Return the processor time of the processes that a process has started and that run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sum(process_ns(int(child)) for child in children.split())


def sessions_ns(sql: Callable[..., list[dict[str, Any]]]) -> int:
    """Return the processor time of the processes of the server's clients, of those that have ended
    too; without that of the client which asks. What has ended is counted in hundredths of a second.
    """
    running = """
        SELECT pid FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""
    [own] = sql("SELECT pg_backend_pid() AS pid")
    of_own = Path(f"/proc/{own['pid']}/stat").read_text().rpartition(")")[2].split()
    of_parent = Path(f"/proc/{of_own[1]}/stat").read_text().rpartition(")")[2].split()
    ended = (int(of_parent[13]) + int(of_parent[14])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ended + sum(process_ns(row["pid"]) for row in sql(running))


@dataclass
class Spent:
    """What a call took, in ms: on the clock, on a processor on either side, waiting for one."""

    clock: float
    client: float
    server: float
    waiting: float

    @property
    def rest(self) -> float:
        """Waiting for locks and the disk. The two sides may have worked at the same time."""
        return max(0.0, self.clock - self.client - self.server - self.waiting)


def spent(call: Callable[[], Any], into: list[Spent]) -> Any:
    """Return what ``call`` returns, and add what it took. The server has to run on this machine,
    under Linux.
    """
    before = _so_far()
    found = call()
    clock, client, waited, server, server_waited = (
        (after - earlier) / 1e6 for earlier, after in zip(before, _so_far(), strict=True)
    )
    into.append(Spent(clock, client, server, waited + server_waited))
    return found


def _so_far() -> list[int]:
    pid = connection.connection.info.backend_pid
    found = [time.perf_counter_ns()]
    for process in ("thread-self", str(pid)):
        # On a processor, and in the queue for one.
        found += map(int, Path(f"/proc/{process}/schedstat").read_text().split()[:2])
    return found


def share(values: Sequence[float], of: float) -> float:
    """Return the smallest value that so many of the values do not exceed."""
    return sorted(values)[max(0, round(of * len(values)) - 1)]


def wal_written() -> int:
    """Return how many bytes of WAL there are."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        [(size,)] = cursor.fetchall()
    return int(size)
