"""What a claim costs behind a long line of jobs that are not for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import pause, resume
from jobreaper.models import Job
from jobreaper.protocol import lines
from jobreaper.protocol.batch import claim_group
from jobreaper.tables import table_of
from tests.benchmarks.conftest import Report
from tests.benchmarks.costs import HEADINGS, measured

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(3600),
    pytest.mark.django_db(transaction=True),
]

TIMES = 100
WANTED = 2_000
FILLING = """
INSERT INTO jobreaper_jobs (id, type, stage, queue, next_earliest_run_at)
SELECT gen_random_uuid(), %(kind)s, %(kind)s, %(kind)s,
       now() - %(before)s * interval '1 hour' + n * interval '1 microsecond'
  FROM generate_series(1, %(n)s) AS n
"""
FULL = """
INSERT INTO jobreaper_jobs (id, type, stage, queue, status, lease_expires_at)
VALUES (gen_random_uuid(), 'front', 'front', 'front', 'processing', now() + interval '1 day')
"""


@contextmanager
def paused(name: str) -> Iterator[None]:
    pause(name)
    yield
    resume(name)


@contextmanager
def full() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(FULL)
    with override_settings(JOBREAPER={"STAGES": {"front": {"max_running": 1}}}):
        yield


@contextmanager
def as_it_is() -> Iterator[None]:
    yield


# What is the matter with the jobs in front, and what the claim asks for.
WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a paused stage or type": (lambda: paused("front"), {}),
    "a paused queue": (lambda: paused("queue:front"), {}),
    "a type without a handler": (as_it_is, {"types": ["mail", "fax"]}),
    "a full stage": (full, {}),
}


def claim(wanted: dict[str, Any], _: None) -> None:
    assert len(claim_group(table_of(Job), 1, **wanted)) == 1


@pytest.mark.parametrize("in_front", [100_000, 1_000_000])
def test_a_claim_behind_a_long_line(in_front: int, report: Report) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobreaper_jobs, job_events")
        cursor.execute(FILLING, {"kind": "mail", "before": 1, "n": WANTED})
        cursor.execute("VACUUM ANALYZE jobreaper_jobs")
    alone = measured(lambda: None, partial(claim, {}), TIMES)
    rows: list[tuple[object, ...]] = [HEADINGS, alone.row("nothing")]
    with connection.cursor() as cursor:
        cursor.execute(FILLING, {"kind": "front", "before": 2, "n": in_front})
        cursor.execute("VACUUM ANALYZE jobreaper_jobs")
    for name, (way, wanted) in WAYS.items():
        with way():
            lines._long.clear()
            first = measured(lines._long.clear, partial(claim, wanted), 20)
            then = measured(lambda: None, partial(claim, wanted), TIMES)
        rows += [first.row(f"{name}: the first claim"), then.row(f"{name}: the next ones")]
    report(f"A claim of one job behind {in_front:,} others", rows)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobreaper_jobs, job_events")
