"""Whether anything that workers send or people look at grows with the jobs that are done.

`JOBREAPER_BENCH_ROWS=10000000 make bench ARGS="-k scale"` has ten million jobs and half as many
events: 7 GB, which take a quarter of an hour. With `JOBREAPER_BENCH_KEEP=1` and a server of your
own in `DATABASE_URL`, they are still there the next time.
"""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from psycopg.sql import Identifier

from jobreaper import claim, claim_next, reap
from jobreaper.celery import dispatcher
from jobreaper.control.retention import record_statements
from jobreaper.metrics import readings
from jobreaper.models import Job, JobEvent, ReaperPass, RefusedRow, Worker
from jobreaper.protocol import lines
from jobreaper.tables import job_tables, table_of
from project.media.models import Job as OwnTable
from tests.admin.pages import list_of, page_of
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import server_ns
from tests.benchmarks.scale_rows import EXPIRED, QUEUED, RUNNING, connected_to, database

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(4 * 3600),
    pytest.mark.django_db(transaction=True),
]

ROWS = int(os.environ.get("JOBREAPER_BENCH_ROWS", "200000"))
FINISHED = {"small": 8_000, "large": ROWS - QUEUED - RUNNING}
EVENTS = {"small": 5_000, "large": ROWS // 2}
# Whether the databases stay, for another run on the same server.
KEPT = os.environ.get("JOBREAPER_BENCH_KEEP") == "1"
ROUNDS, VERB_TIMES, PAGE_TIMES = 2, 10, 3
SLOW_MS = 50

Call = Callable[[Any], Any]


@dataclass
class Calls:
    """What calls took: the server's processor time in ms, the statements of one, and the longest
    time of each slow statement, of the processor and by the clock.
    """

    server_ms: list[float] = field(default_factory=list)
    statements: int = 0
    slow: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def watch(self) -> Iterator[None]:
        self.statements = 0
        before = server_ns() or 0
        with connection.execute_wrapper(self._send):
            yield
        self.server_ms.append(((server_ns() or 0) - before) / 1e6)

    def _send(self, execute: Any, sql: Any, *arguments: Any) -> Any:
        began, before = time.perf_counter(), server_ns() or 0
        try:
            return execute(sql, *arguments)
        finally:
            wall = (time.perf_counter() - began) * 1000
            # Those of the transaction that undoes everything.
            self.statements += "SAVEPOINT" not in str(sql)
            spent = ((server_ns() or 0) - before) / 1e6
            if spent > SLOW_MS:
                said = shortened(str(sql))
                self.slow[said] = max((spent, wall), self.slow.get(said, (0.0, 0.0)))


def shortened(sql: str) -> str:
    """The beginning of a statement, without the columns that Django lists."""
    words = " ".join(sql.split())
    columns, _, rest = words.partition(" FROM ")
    return f"{columns[:40]}… FROM {rest}"[:160]


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def nothing() -> None:
    pass


def due_job() -> Any:
    [lease] = claim_next(Job)
    lease.release()
    return lease.pk


def claimed() -> Any:
    [lease] = claim_next(Job)
    return lease


def all_live() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobreaper_jobs SET lease_expires_at = now() + interval '1 day'"
            " WHERE status = 'processing' AND lease_expires_at < now()"
        )


def all_live_and_none_refused() -> None:
    all_live()
    RefusedRow.objects.all().delete()


def reap_expired(_: None) -> None:
    # In the first minutes after the server's start, a pass would be held.
    assert reap(hold=False).requeued == EXPIRED


def prune(_: None) -> None:
    statement = record_statements(JobEvent, Identifier("at")).deleting
    with connection.cursor() as cursor:
        cursor.execute(statement, {"age_sec": 0, "batch": 500, "kept": 0})
        assert cursor.fetchall() == [(500,)]


def mark_as_sent(_: None) -> None:
    wanted = {"id": None, "n": 100, "stages": None}
    assert len(dispatcher._mark(table_of(Job), wanted)) == 100


def count_a_million(_: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM generate_series(1, 1000000)")


# What comes before, and the call.
REFERENCE = "for comparison: count a million numbers"
VERBS: dict[str, tuple[Callable[[], Any], Call]] = {
    REFERENCE: (nothing, count_a_million),
    "claim": (due_job, lambda key: claim(Job, key)),
    "claim_next": (nothing, lambda _: claim_next(Job)),
    "claim_next of 100": (nothing, lambda _: claim_next(Job, 100)),
    "heartbeat": (claimed, lambda lease: lease.heartbeat()),
    "finish": (claimed, lambda lease: lease.finish()),
    "fail": (claimed, lambda lease: lease.fail("code", "reason")),
    f"a pass that reaps {EXPIRED}": (nothing, reap_expired),
    "a pass that reaps none": (all_live, lambda _: reap(hold=False)),
    "a quiet pass": (all_live_and_none_refused, lambda _: reap(hold=False)),
    "a scrape": (nothing, lambda _: readings.read(connection, job_tables())),
    "a dispatch of 100": (nothing, mark_as_sent),
    "a prune of 500 events": (nothing, prune),
}


def addresses() -> dict[str, str]:
    """The pages of the admin."""
    jobs, own, events = list_of(Job), list_of(OwnTable), list_of(JobEvent)
    failed = Job.objects.filter(status="failed").order_by("-finished_at")[:1].get()
    running = Job.objects.running().order_by("lease_expires_at")[:1].get()
    return {
        "Reaper page": reverse("admin:jobreaper_reaper_changelist"),
        "Reaper page, its parts again": reverse("admin:jobreaper_reaper_parts"),
        "jobs": jobs,
        "jobs, page 100": f"{jobs}?p=100",
        "failed jobs, with their errors": f"{jobs}?status=failed",
        "failed jobs of an error": f"{jobs}?status=failed&error=poison",
        "failed jobs of a stage": f"{jobs}?status=failed&stage=export",
        "successful jobs": f"{jobs}?status=success",
        "queued jobs": f"{jobs}?status=queued",
        "expired leases": f"{jobs}?lease=expired",
        "jobs of a stage": f"{jobs}?stage=export",
        "jobs of no such stage": f"{jobs}?stage=none",
        "jobs of a queue": f"{jobs}?queue=slow",
        "jobs of a worker": f"{jobs}?worker=worker:1",
        "a job by its key": f"{jobs}?q={failed.pk}",
        "a failed job": page_of(failed),
        "a running job": page_of(running),
        "a table of one's own": own,
        "its failed jobs, with their errors": f"{own}?status=failed",
        "its jobs of a rare stage": f"{own}?stage=rare",
        "events": events,
        "events of a rare type": f"{events}?type=reaper:failed(poison)",
        "events of another table": f"{events}?table=jobs",
        "events of a job": f"{events}?q={failed.pk}",
        "workers": list_of(Worker),
        "passes": list_of(ReaperPass),
        "passes with an error": f"{list_of(ReaperPass)}?outcome=error",
        "rows that cannot be written": list_of(RefusedRow),
    }


def look_at(client: Client, address: str) -> None:
    response = client.get(address)
    assert response.status_code == 200, (response.status_code, address)


def command(*arguments: str) -> None:
    # The doctor finds that nothing reaps here.
    with suppress(CommandError):
        call_command(*arguments, stdout=StringIO(), stderr=StringIO())


def measure(found: dict[str, Calls]) -> None:
    """Measure everything once more in a database."""
    lines._long.clear()
    for name, (before, call) in VERBS.items():
        for warm in (False, *[True] * VERB_TIMES):
            with undone():
                given = before()
                with (found[name] if warm else Calls()).watch():
                    call(given)
    client = Client()
    user, _ = User.objects.get_or_create(username="ada", is_staff=True, is_superuser=True)
    client.force_login(user)
    pages = addresses()
    looks: dict[str, Callable[[], None]] = {
        name: partial(look_at, client, address) for name, address in pages.items()
    }
    key = str(Job.objects.running().order_by("lease_expires_at")[:1].get().pk)
    looks["manage.py explain"] = partial(command, "explain", key, "--table", "jobreaper_jobs")
    looks["manage.py reaper_doctor"] = partial(command, "reaper_doctor")
    for name, look in looks.items():
        for warm in (False, *[True] * PAGE_TIMES):
            with (found[name] if warm else Calls()).watch():
                look()


def test_what_grows_with_the_jobs_that_are_done(report: Report) -> None:
    found: dict[str, dict[str, Calls]] = {size: defaultdict(Calls) for size in FINISHED}
    names = {size: f"jobreaper_{FINISHED[size]}_jobs" for size in FINISHED}
    with ExitStack() as stack:
        for size, name in names.items():
            began = time.perf_counter()
            made = database(name, FINISHED[size], EVENTS[size], kept=KEPT)
            stack.enter_context(made)
            print(f"{name}: filled in {time.perf_counter() - began:,.0f} s")
        # In turns, so that what else the machine does is in both.
        for _ in range(ROUNDS):
            for size in FINISHED:
                with connected_to(names[size]):
                    measure(found[size])
    small, large = found["small"], found["large"]
    rows: list[tuple[object, ...]] = [
        ("", "statements", *(f"{FINISHED[s]:,} finished, ms" for s in FINISHED), "ratio"),
    ]
    for name, calls in large.items():
        few, many = statistics.median(small[name].server_ms), statistics.median(calls.server_ms)
        rows.append((name, calls.statements, f"{few:.1f}", f"{many:.1f}", f"{many / few:.2f}"))
    report(
        f"{QUEUED:,} queued and {RUNNING:,} running jobs; {EVENTS['small']:,} and"
        f" {EVENTS['large']:,} events; the server's processor time, the median of"
        f" {ROUNDS * VERB_TIMES} calls and of {ROUNDS * PAGE_TIMES} pages",
        rows,
    )
    slow = [
        (f"{name}: {said}", f"{spent:.0f}", f"{wall:.0f}")
        for name, calls in large.items()
        for said, (spent, wall) in calls.slow.items()
    ]
    report(
        f"Its statements of more than {SLOW_MS} ms of processor time, the longest of each",
        [("in the larger database", "ms", "ms by the clock"), *slow],
    )
