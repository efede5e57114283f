"""Instances made of a statement's rows are those that the ORM would have made."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, models
from django.db.models.signals import post_init

from jobreaper.models import Job
from jobreaper.protocol.rows import instances
from tests.rows import Rows, ago, ahead

pytestmark = pytest.mark.usefixtures("transactional_db")


class Particular(Job):
    """A job with ideas of its own about how it is made."""

    class Meta:
        proxy = True
        app_label = "queue"

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = super().from_db(*args, **kwargs)
        made.made_by = "from_db"
        return made


def read(model: type[Job] = Job) -> list[Any]:
    columns = ", ".join(str(own.column) for own in model._meta.concrete_fields)
    statement = f"SELECT {columns}, 7 FROM jobreaper_jobs ORDER BY id"
    found = instances(connection, model, statement, {})
    assert {others for _, others in found} <= {(7,)}
    return [job for job, _ in found]


@pytest.fixture
def some(jobs: Rows) -> None:
    jobs.plant(
        payload='{"né": [1, null, {"deep": 2.5}]}', priority=-3, next_earliest_run_at=ahead(60)
    )
    jobs.plant_running(org_id="acme", fail_reason="…", dispatched_at=ago(5))


def test_they_are_equal_in_every_field(some: None) -> None:
    expected = Job.objects.order_by("id")
    made = read()
    assert [vars(job) | {"_state": None} for job in made] == [
        vars(job) | {"_state": None} for job in expected
    ]
    assert {(job._state.adding, job._state.db) for job in made} == {(False, "default")}


def test_two_of_them_share_nothing_that_can_be_changed(jobs: Rows) -> None:
    for _ in range(2):
        jobs.plant(payload='{"a": []}')
    one, other = read()
    one.payload["a"].append(1)
    one.org_id = "mine"
    assert (other.payload, other.org_id) == ({"a": []}, None)


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def note(instance: models.Model, **_: Any) -> None:
        heard.append(instance.pk)

    post_init.connect(note, sender=Job)
    yield heard
    post_init.disconnect(note, sender=Job)


def test_who_listens_to_a_models_instances_hears_of_each(some: None, heard: list[Any]) -> None:
    assert heard == [job.pk for job in read()]


def test_a_model_with_a_from_db_of_its_own_is_made_by_it(some: None) -> None:
    assert {job.made_by for job in read(Particular)} == {"from_db"}
