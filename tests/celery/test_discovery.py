"""Finding the tasks in a process that only sends, or that runs jobs without Celery."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from jobreaper.celery.declared import import_tasks, leased_tasks
from jobreaper.celery.task import LeasedTask
from jobreaper.queue import handlers
from tests.celery.brokers import broker_url, celery_app

CALLERS: list[Callable[[], object]] = [leased_tasks, handlers.handlers]


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Each test looks anew."""
    handlers.import_handlers.cache_clear()
    import_tasks.cache_clear()
    yield
    handlers.import_handlers.cache_clear()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module that Celery is told to import; return its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        (tmp_path / "some_other_tasks.py").write_text(source)
        return "some_other_tasks"

    yield write
    sys.modules.pop("some_other_tasks", None)


@pytest.mark.parametrize("look", CALLERS)
def test_looking_for_tasks_leaves_the_logging_of_the_process_alone(
    look: Callable[[], object], one_app: Celery
) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    root.setLevel(logging.CRITICAL)
    try:
        look()
        assert (root.handlers, root.level) == (before[0], logging.CRITICAL)
    finally:
        root.setLevel(before[1])


@pytest.mark.parametrize("look", CALLERS)
@pytest.mark.parametrize("setting", ["imports", "include"])
def test_what_celerys_settings_name_is_imported(
    setting: str, look: Callable[[], object], module: Callable[[str], str]
) -> None:
    name = module("")
    with celery_app(broker_url("redis"), **{setting: (name,)}):
        look()
        assert name in sys.modules


@pytest.mark.parametrize("look", CALLERS)
def test_a_module_that_cannot_be_imported_is_named_and_hides_no_other(
    look: Callable[[], object], module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    name = module("import nothing_of_that_name")
    with celery_app(broker_url("redis"), imports=(name,)):
        look()
        assert f"{name} could not be imported" in caplog.text
        assert "No module named 'nothing_of_that_name'" in caplog.text
        names = [task.name for task in leased_tasks()]
    assert "project.media.tasks.render" in names


def test_tasks_of_the_apps_are_found_and_others_are_not_taken_for_leased(one_app: Celery) -> None:
    found = leased_tasks()
    assert all(isinstance(task, LeasedTask) for task in found)
    names = [task.name for task in found]
    assert names == sorted(names)
    assert {"project.media.tasks.render", "project.media.tasks.extract_sound"} <= set(names)
    assert "jobreaper.reap" not in names
