"""The system checks of Celery: each is found where it should be, and nowhere else."""

from typing import Any

import pytest
from celery import Celery
from django.core.checks import CheckMessage, run_checks
from django.db import connection
from django.test import override_settings

from jobreaper.tables import table_of
from project.media.models import Job
from tests.celery.brokers import broker_url, celery_app, leased


def found() -> list[CheckMessage]:
    return run_checks(tags=["jobreaper"])


def declare(app: Celery, **options: Any) -> None:
    @leased(app, name="tests.checked", **options)
    def work(job: Any, lease: Any) -> None: ...


def check_one(id: str, words: str) -> None:
    """Check that one thing is wrong, and that it is explained."""
    [message] = found()
    assert message.id == f"jobreaper.{id}"
    assert words in message.msg
    assert message.hint is not None
    assert message.hint.endswith(f" See docs/checks.md#{id.lower()}")
    assert message.is_serious() == id.startswith("E")


def test_a_task_as_the_docs_have_it_passes(app: Celery) -> None:
    declare(app)
    assert found() == []


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "tests.checked needs model=… beside base=LeasedTask"),
        ("media.Gone", "no model 'media.Gone'"),
        ("nonsense", "no model 'nonsense'"),
        ("auth.User", "Task tests.checked can run no job"),
        ("documents.ExecutorJob", "jobs of executor_jobs can be reaped but not leased"),
    ],
)
def test_a_task_that_can_run_no_job_is_an_error(
    model: str | None, words: str, one_app: Celery
) -> None:
    declare(one_app, model=model)
    check_one("E006", words)


def test_what_is_wrong_with_the_database_is_not_said_of_each_task_too(
    one_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(one_app, model="media.Job")
    monkeypatch.setitem(vars(table_of(Job)), "_statements", {})
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    assert [message.id for message in found()] == ["jobreaper.E007"]


def test_a_message_that_redis_delivers_again_in_mid_job_is_a_warning() -> None:
    with celery_app(
        broker_url("redis"), broker_transport_options={"visibility_timeout": 60}
    ) as app:
        declare(app, acks_late=True)
        check_one("W002", "again after 60 s, while a lease is 300 s")


def test_redis_own_visibility_timeout_is_known() -> None:
    with celery_app(broker_url("redis")) as app:
        declare(app, acks_late=True)
        assert found() == []
        with override_settings(JOBREAPER={"STAGES": {"long": {"lease": "2h"}}}):
            check_one("W002", "again after 3600 s, while a lease is 7200 s")


@pytest.mark.parametrize(
    ("broker_url", "options"),
    [
        # The lease is shorter: the message stays away for as long as it holds.
        ("redis://127.0.0.1:1/0", {"visibility_timeout": 301}),
        # RabbitMQ does not deliver again while the connection stands.
        ("amqp://127.0.0.1:1//", {"visibility_timeout": 60}),
    ],
)
def test_acks_late_alone_is_no_warning(broker_url: str, options: dict[str, int]) -> None:
    with celery_app(broker_url, broker_transport_options=options) as app:
        declare(app, acks_late=True)
        assert found() == []


def test_a_short_visibility_timeout_is_no_warning_where_messages_are_acknowledged_early() -> None:
    options = {"visibility_timeout": 60}
    with celery_app(broker_url("redis"), broker_transport_options=options) as app:
        declare(app)
        assert found() == []


def test_a_message_that_outlives_its_worker_is_a_warning(one_app: Celery) -> None:
    declare(one_app, acks_late=True, reject_on_worker_lost=True)
    check_one("W003", "reject_on_worker_lost=True")


def test_reject_on_worker_lost_does_nothing_without_acks_late(one_app: Celery) -> None:
    declare(one_app, reject_on_worker_lost=True)
    assert found() == []


def test_celerys_global_settings_do_not_reach_leased_tasks() -> None:
    """What suits other tasks may stand: leased ones acknowledge early whatever it says."""
    options = {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": 60},
    }
    with celery_app(broker_url("redis"), **options) as app:
        declare(app)
        assert found() == []


def test_a_worker_that_takes_every_message_is_a_warning() -> None:
    with celery_app(broker_url("redis"), worker_prefetch_multiplier=0) as app:
        declare(app)
        check_one("W004", "worker_prefetch_multiplier is 0")


@pytest.mark.parametrize("multiplier", [1, 4])
def test_a_bounded_prefetch_is_no_warning(multiplier: int) -> None:
    with celery_app(broker_url("redis"), worker_prefetch_multiplier=multiplier) as app:
        declare(app)
        assert found() == []


def test_a_broker_that_is_away_does_not_hold_the_checks_up() -> None:
    with celery_app("redis://192.0.2.1:6379/0") as app:
        declare(app, acks_late=True)
        assert found() == []
