"""The payment of docs/testing.md: its code, and its tests."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from jobreaper.models import Job
from jobreaper.queue.handlers import _handlers
from tests.docs import markdown

pytestmark = pytest.mark.django_db(transaction=True)

CODE = markdown.section(markdown.page("testing"), "A payment")


@pytest.fixture
def shop() -> Iterator[dict[str, Any]]:
    """The names in the shop's modules, and its tables."""
    before = dict(_handlers)
    # Django finds the app of a model by the name of its module.
    names: dict[str, Any] = {"__name__": "project.media.shop"}
    for _, code in markdown.files(CODE):
        exec(code, names)  # noqa: S102  our own documentation
    models = [names["Charge"], names["Payment"]]
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    yield names
    with connection.schema_editor() as editor:
        for model in models:
            editor.delete_model(model)
    for model in models:
        del apps.all_models["media"][model._meta.model_name]
    apps.clear_cache()
    _handlers.clear()
    _handlers.update(before)


MOMENTS = ["after claim", "before finish", "in finish", "after finish"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_customer_pays_once_whenever_the_worker_is_killed(moment: str, shop: Any) -> None:
    shop["test_a_customer_pays_once_whenever_the_worker_is_killed"](moment)
    assert Job.objects.get().status == "success"


def test_a_customer_pays_once_although_two_workers_run_the_job(shop: Any) -> None:
    shop["test_a_customer_pays_once_although_two_workers_run_the_job"]()


def test_a_worker_that_was_frozen_records_no_payment(shop: Any) -> None:
    shop["test_a_worker_that_was_frozen_records_no_payment"]()


def test_the_tests_notice_a_payment_that_is_recorded_before_the_end(shop: Any) -> None:
    def careless(job: Any, lease: Any) -> None:
        shop["Charge"].objects.get_or_create(key="order-17")
        shop["Payment"].objects.create(order_id=17)
        lease.finish()

    _handlers["charge"] = careless
    for name in ("although_two_workers_run_the_job", "whenever_the_worker_is_killed"):
        arguments = ["before finish"] if name.startswith("whenever") else []
        with pytest.raises(AssertionError):
            shop[f"test_a_customer_pays_once_{name}"](*arguments)
        shop["Payment"].objects.all().delete()
        Job.objects.all().delete()
