"""What a worker's verbs cost: statements, round trips, milliseconds."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from jobreaper import Lease, claim, claim_next, heartbeat, hold
from jobreaper.tables import table_of
from project.media.models import AsrJob, Job
from tests.benchmarks.conftest import Load, Report

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

TIMES = 200


@dataclass
class Cost:
    statements: int = 0
    round_trips: int = 0


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


def due() -> int:
    key = Job.objects.due().values_list("pk", flat=True).first()
    assert key is not None
    return int(key)


def nothing() -> None:
    pass


def claimed() -> Lease:
    [lease] = claim_next(Job)
    return lease


def finish_with_the_work(lease: Lease) -> None:
    with transaction.atomic():
        AsrJob.objects.create()
        lease.finish()


def hold_and_finish(key: int) -> None:
    with hold(Job, key):
        pass


# What comes before, the verb, and how many jobs it is for.
VERBS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int]] = {
    "claim": (due, lambda key: claim(Job, key), 1),
    "claim_next": (nothing, lambda _: claim_next(Job), 1),
    "claim_next(n=100)": (nothing, lambda _: claim_next(Job, 100), 100),
    "check": (claimed, lambda lease: lease.check(), 1),
    "heartbeat": (claimed, lambda lease: lease.heartbeat(), 1),
    "finish": (claimed, lambda lease: lease.finish(), 1),
    "finish with a write of the work's": (claimed, finish_with_the_work, 1),
    "fail": (claimed, lambda lease: lease.fail("code", "reason"), 1),
    "release": (claimed, lambda lease: lease.release(), 1),
    "hold around nothing": (due, hold_and_finish, 1),
}


def test_what_each_verb_costs(load: Load, report: Report) -> None:
    load(100_000)
    rows: list[tuple[object, ...]] = [("", "statements", "round trips", "ms", "ms a job")]
    for name, (before, verb, jobs) in VERBS.items():
        Job.objects.bulk_create([Job(stage="clip") for _ in range((TIMES + 1) * jobs)])
        given = before()
        with counted() as cost:
            verb(given)
        taken = []
        for _ in range(TIMES):
            given = before()
            started = time.perf_counter()
            verb(given)
            taken.append((time.perf_counter() - started) * 1000)
        median = statistics.median(taken)
        rows.append(
            (
                name,
                cost.statements,
                cost.round_trips,
                f"{median:.3f}",
                f"{median / jobs:.3f}",
            )
        )
        Job.objects.exclude(status="success").delete()
    report(f"A worker's verbs, 100,000 finished rows beside, median of {TIMES}", rows)


LEASES = 1000
BEATS = 20
BY_HAND = """
UPDATE jobs
   SET last_heartbeat_at = statement_timestamp(),
       lease_expires_at = statement_timestamp() + interval '5 minutes'
 WHERE id = ANY (%s) AND lease_epoch = 1 AND status = 'processing'
"""


def wal_written() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        [(size,)] = cursor.fetchall()
    return int(size)


def table_size() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size('jobs')")
        [(size,)] = cursor.fetchall()
    return int(size)


def held_leases() -> list[Lease]:
    Job.objects.bulk_create([Job(stage="clip") for _ in range(LEASES)])
    return claim_next(Job, LEASES)


def test_a_beat_for_a_thousand_leases(load: Load, report: Report) -> None:
    load(100_000)
    leases = held_leases()
    keys = [lease.key for lease in leases]

    def by_hand() -> None:
        with connection.cursor() as cursor:
            cursor.execute(BY_HAND, [keys])

    def by_the_package() -> None:
        heartbeat.beat(connection, table_of(Job), leases)

    rows: list[tuple[object, ...]] = [("", "ms", "kB of WAL", "ratio")]
    medians = []
    for run in (by_hand, by_the_package):
        taken = []
        written = wal_written()
        for _ in range(BEATS):
            started = time.perf_counter()
            run()
            taken.append((time.perf_counter() - started) * 1000)
        medians.append(statistics.median(taken))
        rows.append(
            (
                run.__name__.replace("_", " "),
                f"{medians[-1]:.1f}",
                f"{(wal_written() - written) / BEATS / 1000:.0f}",
                f"{medians[0] / medians[-1]:.2f}",
            )
        )
    report(f"One beat for {LEASES:,} leases, median of {BEATS}", rows)


def test_what_beats_leave_behind_while_a_transaction_is_held_open(
    load: Load, report: Report, second_connection: psycopg.Connection[Any]
) -> None:
    """awa#169: dead rows cannot be removed while somebody may still see them."""
    load(100_000)
    leases = held_leases()

    def grown_by_beats() -> float:
        before = table_size()
        for _ in range(BEATS):
            heartbeat.beat(connection, table_of(Job), leases)
        return (table_size() - before) / BEATS / LEASES

    rows: list[tuple[object, ...]] = [("", "bytes a beat")]
    second_connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    second_connection.execute("SELECT count(*) FROM jobs")
    rows.append(("a transaction is open", f"{grown_by_beats():.0f}"))
    second_connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM jobs")
    rows.append(("it has ended, and VACUUM ran once", f"{grown_by_beats():.0f}"))
    report(f"Growth of the table under {BEATS} beats for {LEASES:,} leases", rows)
