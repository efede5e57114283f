"""Which function handles a type."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import current_app, shared_task
from django.test import Client
from pytest_django import Settings

from jobreaper import ConfigurationError, LeasedTask, enqueue, job_handler
from jobreaper.celery.dispatcher import dispatch
from jobreaper.models import Job
from jobreaper.queue.handlers import handlers, import_handlers
from jobreaper.queue.runs import run_due
from jobreaper.queue.unhandled import unhandled
from jobreaper.tables import table_of
from project.media.models import AsrJob
from tests.rows import Sql

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_a_function_handles_the_type_it_is_declared_for() -> None:
    seen: list[Any] = []

    @job_handler("mail")
    def send(job: Any, lease: Any) -> None:
        seen.append((job.payload, job.pk == lease.pk, lease.closed))

    assert handlers()["mail"] is send
    enqueue("mail", {"to": "x"})
    assert run_due(5, 60).succeeded == 1
    assert seen == [({"to": "x"}, True, False)]


def test_two_functions_for_one_type_are_a_mistake_and_a_reload_is_none() -> None:
    def declare() -> Any:
        @job_handler("mail")
        def send(job: Any, lease: Any) -> None: ...

        return send

    declare()
    again = declare()
    assert handlers()["mail"] is again
    with pytest.raises(ConfigurationError, match=r"declare.<locals>.send does already"):

        @job_handler("mail")
        def other(job: Any, lease: Any) -> None: ...


@pytest.mark.parametrize("type", ["", "ma\x00il", "mail\ud800"])
def test_a_type_that_no_job_can_have_is_refused(type: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot handle the type .*: it must"):

        @job_handler(type)
        def send(job: Any, lease: Any) -> None: ...


@pytest.fixture
def celery_tasks() -> Any:
    """Celery tasks that a test declares are gone after it."""
    before = set(current_app.tasks)
    yield
    for name in set(current_app.tasks) - before:
        del current_app.tasks[name]


def test_a_celery_task_of_that_name_is_a_handler(celery_tasks: None) -> None:
    seen: list[Any] = []

    @shared_task(name="tests.send")
    def send(to: str, copies: int = 1) -> None:
        seen.append((to, copies))

    @shared_task(name="tests.render", base=LeasedTask, model="jobreaper.Job", stage="elsewhere")
    def render(job: Any, lease: Any) -> None:
        seen.append((job.type, lease.epoch))

    enqueue("tests.send", {"to": "x", "copies": 2})
    enqueue("tests.render")
    assert run_due(5, 60).succeeded == 2
    assert seen == [("x", 2), ("tests.render", 1)]


def test_tasks_of_celerys_and_of_ours_are_no_handlers() -> None:
    assert "jobreaper.dispatch" in current_app.tasks
    assert not [name for name in handlers() if name.startswith(("celery.", "jobreaper."))]


def test_handlers_are_looked_for_in_the_apps_modules() -> None:
    # project.media.tasks declares it.
    assert "project.media.tasks.render" in handlers()


def test_types_without_a_handler_are_named_and_those_of_celery_are_not(celery_tasks: None) -> None:
    @shared_task(name="tests.by_stage", base=LeasedTask, model="jobreaper.Job", stage="ours")
    def by_stage(job: Any, lease: Any) -> None: ...

    job_handler("mail")(lambda job, lease: None)
    for type in ("mail", "fax", "fax", "ours"):
        enqueue(type)
    assert unhandled(table_of(Job)) == {"fax": 2}


def test_of_a_table_of_yours_the_stages_without_a_task_are_named(
    monkeypatch: pytest.MonkeyPatch, sql: Sql
) -> None:
    sql("INSERT INTO asr_jobs (stage) VALUES ('asr'), ('fax'), ('fax'), (NULL)")
    table = table_of(AsrJob)
    assert unhandled(table) == {}
    elsewhere = SimpleNamespace(handlers=dict, stages=lambda model: ["asr"])
    monkeypatch.setattr("jobreaper.queue.handlers._sources", [elsewhere])
    assert unhandled(table) == {"fax": 2, None: 1}


def test_handlers_that_cannot_be_imported_are_named_and_stop_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    admin_client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "shop_of_a_test").mkdir()
    (tmp_path / "shop_of_a_test" / "__init__.py").touch()
    (tmp_path / "shop_of_a_test" / "handlers.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "shop_of_a_test"]
    import_handlers.cache_clear()

    @job_handler("mail")
    def send(job: Any, lease: Any) -> None: ...

    assert handlers()["mail"] is send
    assert "shop_of_a_test.handlers could not be imported" in caplog.text
    assert "No module named 'nothing_of_that_name'" in caplog.text
    enqueue("sell")
    assert dispatch().errors == []
    assert "no handler" in admin_client.get("/admin/jobreaper/job/").content.decode()
