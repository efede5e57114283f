"""What verbs and quiet passes cost."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from jobreaper import Lease, claim, claim_next, enqueue, enqueue_many, hold, reap
from jobreaper.protocol import heartbeat
from jobreaper.protocol.holding import Holding, holding_of
from jobreaper.tables import table_of
from project.media.models import AsrJob, Job
from tests.benchmarks.conftest import Load, Report
from tests.benchmarks.costs import HEADINGS, measured, wal_written

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

TIMES = 200


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


def many(n: int) -> None:
    enqueue_many(({"payload": {"n": n}} for n in range(n)), type="mail")


# What comes before, the verb, and how many jobs it is for.
VERBS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int]] = {
    "claim": (due, lambda key: claim(Job, key), 1),
    "claim_next": (nothing, lambda _: claim_next(Job), 1),
    "claim_next(n=100), each": (nothing, lambda _: claim_next(Job, 100), 100),
    "check": (claimed, lambda lease: lease.check(), 1),
    "heartbeat": (claimed, lambda lease: lease.heartbeat(), 1),
    "finish": (claimed, lambda lease: lease.finish(), 1),
    "finish with a write of the work's": (claimed, finish_with_the_work, 1),
    "fail": (claimed, lambda lease: lease.fail("code", "reason"), 1),
    "release": (claimed, lambda lease: lease.release(), 1),
    "hold around nothing": (due, hold_and_finish, 1),
    "enqueue": (nothing, lambda _: enqueue("mail", {"n": 1}), 1),
    "enqueue_many of 10,000, each": (nothing, lambda _: many(10_000), 10_000),
    "a quiet pass over all tables": (nothing, lambda _: reap(), 1),
}


def test_what_each_verb_costs(load: Load, report: Report) -> None:
    load(100_000)
    rows: list[tuple[object, ...]] = [HEADINGS]
    for name, (before, verb, jobs) in VERBS.items():
        times = max(10, TIMES // jobs)
        Job.objects.bulk_create([Job(stage="clip") for _ in range((times + 5) * min(jobs, 100))])
        rows.append(measured(before, verb, times).row(name, jobs))
        Job.objects.exclude(status="success").delete()
    report(f"What is sent, 100,000 finished rows beside, median of up to {TIMES}", rows)


LEASES = 1000
BEATS = 20
BY_HAND = """
UPDATE jobs
   SET last_heartbeat_at = statement_timestamp(),
       lease_expires_at = statement_timestamp() + interval '5 minutes'
 WHERE id = ANY (%s) AND lease_epoch = 1 AND status = 'processing'
"""


def table_size() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size('jobs')")
        [(size,)] = cursor.fetchall()
    return int(size)


def held_leases() -> list[Holding]:
    Job.objects.bulk_create([Job(stage="clip") for _ in range(LEASES)])
    return [holding_of(lease) for lease in claim_next(Job, LEASES)]


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
