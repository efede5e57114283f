"""One failure is one error in the log, with its exception; collectors of errors count lines."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobreaper import claim, enqueue, job_handler
from jobreaper.models import Job
from jobreaper.protocol.claim import hold
from jobreaper.queue.handlers import _handlers
from jobreaper.queue.runs import run_due
from jobreaper.queue.worker import Worker
from tests.celery.brokers import broker_url, celery_app, declare, raising
from tests.committed import foreign_client, sql, transactional_db

__all__ = ["foreign_client", "sql", "transactional_db"]

pytestmark = pytest.mark.usefixtures("transactional_db")

ERROR = ValueError("the same for every job")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    @job_handler("raises")
    def raises(job: Any, lease: Any) -> None:
        raise ERROR

    yield
    del _handlers["raises"]


def by_worker(job: Job) -> None:
    Worker().run(once=True)


def by_tick(job: Job) -> None:
    run_due(1, 60)


def by_hold(job: Job) -> None:
    with pytest.raises(ValueError, match="the same"), hold(Job, job.pk):
        raise ERROR


def by_task(job: Job) -> None:
    with celery_app(broker_url("redis")) as app:
        task = declare(app, raising(ERROR))
        with pytest.raises(ValueError, match="the same"):
            task(job.pk)


def errors(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """The lines at level ERROR, as collectors see them: the template, and the exception."""
    return [
        (record.msg, record.exc_info and record.exc_info[1])
        for record in caplog.records
        if record.levelno >= logging.ERROR
    ]


@pytest.mark.parametrize("run", [by_worker, by_tick, by_hold, by_task])
def test_the_last_failure_is_one_error_with_the_exception(
    run: Callable[[Job], None], caplog: pytest.LogCaptureFixture
) -> None:
    run(enqueue("raises", max_attempts=1))
    assert errors(caplog) == [("job_failed %s", ERROR)]


@pytest.mark.parametrize(
    ("run", "there"), [(by_worker, True), (by_tick, True), (by_hold, False), (by_task, False)]
)
def test_a_failure_that_is_retried_is_one_error_where_nobody_else_reports_it(
    run: Callable[[Job], None], there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run(enqueue("raises", max_attempts=5))
    assert errors(caplog)[:1] == ([("the handler of %s failed on %s", ERROR)] if there else [])


@pytest.mark.parametrize("why", ["broken", ValueError("a secret")])
def test_what_is_failed_by_a_verb_shows_no_reason(
    why: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lease = claim(Job, enqueue("raises", max_attempts=1).pk)
    assert lease is not None
    lease.fail(why, "a secret") if isinstance(why, str) else lease.fail(why)
    assert errors(caplog) == [("job_failed %s", None)]
    assert "secret" not in caplog.text
