"""What holds for a job holds however its row was made: `save()` in Python is one way of many."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.core import serializers
from django.test import override_settings

from jobreaper import claim_next, enqueue, enqueue_many
from jobreaper.base import default_max_attempts
from jobreaper.models import Job
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

ONE = override_settings(JOBREAPER={"STAGES": {"render": {"max_running": 1}}})


def by_create(n: int, sql: Sql) -> None:
    for _ in range(n):
        assert Job.objects.create(type="render").stage == "render"


def by_bulk_create(n: int, sql: Sql) -> None:
    Job.objects.bulk_create([Job(type="render") for _ in range(n)])


def by_bulk_create_over_others(n: int, sql: Sql) -> None:
    made = [Job(type="render", stage="light") for _ in range(n)]
    Job.objects.bulk_create(made)
    for job in made:
        job.stage = None
    Job.objects.bulk_create(
        made, update_conflicts=True, unique_fields=["id"], update_fields=["stage"]
    )


def by_enqueue(n: int, sql: Sql) -> None:
    enqueue("render")
    enqueue_many([{}] * (n - 1), type="render")


def by_a_fixture(n: int, sql: Sql) -> None:
    rows = [
        {"model": "jobreaper.job", "pk": str(uuid4()), "fields": {"type": "render"}}
        for _ in range(n)
    ]
    for made in serializers.deserialize("json", json.dumps(rows)):
        made.save()


def by_update(n: int, sql: Sql) -> None:
    enqueue_many([{}] * n, type="render", stage="light")
    Job.objects.update(stage=None)


def by_bulk_update(n: int, sql: Sql) -> None:
    made = Job.objects.bulk_create([Job(type="render", stage="light") for _ in range(n)])
    for job in made:
        job.stage = None
    Job.objects.bulk_update(made, ["stage"])


def by_a_foreign_client(n: int, sql: Sql) -> None:
    sql(
        "INSERT INTO jobreaper_jobs (id, type)"
        " SELECT gen_random_uuid(), 'render' FROM generate_series(1, %s)",
        n,
    )


WAYS: list[Callable[[int, Sql], None]] = [
    by_create,
    by_bulk_create,
    by_bulk_create_over_others,
    by_enqueue,
    by_a_fixture,
    by_update,
    by_bulk_update,
    by_a_foreign_client,
]


@ONE
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_jobs_type_is_its_stage_and_the_limit_holds(
    jobs: Rows, sql: Sql, way: Callable[[int, Sql], None]
) -> None:
    way(6, sql)
    assert {row["stage"] for row in jobs.all().values()} == {"render"}
    [lease] = claim_next(Job, 4)
    assert lease.job.stage == "render"


def test_a_stage_of_its_own_stays(jobs: Rows) -> None:
    Job.objects.bulk_create([Job(type="render", stage="light")])
    assert [row["stage"] for row in jobs.all().values()] == ["light"]


@override_settings(JOBREAPER={"JOB_MAX_ATTEMPTS": 7})
@pytest.mark.parametrize("way", [by_create, by_bulk_create, by_enqueue, by_a_fixture])
def test_jobs_that_django_makes_have_the_attempts_of_the_settings(
    jobs: Rows, sql: Sql, way: Any
) -> None:
    way(2, sql)
    assert {row["max_attempts"] for row in jobs.all().values()} == {default_max_attempts()} == {7}
