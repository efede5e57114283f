"""`manage.py check` says what is wrong with the Redis queue before anything needs it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobreaper import conf
from jobreaper.redisq.checks import check_redis_queue


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    conf.reset()


def reported(settings: Any, path: Path | None) -> list[str]:
    settings.JOBREAPER = {} if path is None else {"REDIS_QUEUE": str(path)}
    found = check_redis_queue()
    assert {each.id for each in found} <= {"jobreaper.W027"}
    return [each.msg for each in found]


def test_nothing_is_said_without_the_setting_or_about_a_good_configuration(
    settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "good.yaml").write_text("worker: {count: 3}")
    assert reported(settings, None) == []
    assert reported(settings, tmp_path / "good.yaml") == []


def test_every_fault_is_said_and_no_password(settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("worker: {count: 0}\nredis: {db: -1, password: hunter2}")
    [message] = reported(settings, path)
    assert "WORKER_COUNT" in message
    assert "REDIS_DB" in message
    assert "hunter2" not in message


def test_a_file_that_does_not_exist_is_said(settings: Any, tmp_path: Path) -> None:
    [message] = reported(settings, tmp_path / "none.yaml")
    assert "does not exist: the defaults are in force" in message


def test_a_missing_package_is_said(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the module is imported anew, without what it needs.
    monkeypatch.delattr("jobreaper.redisq.loading")
    monkeypatch.delitem(sys.modules, "jobreaper.redisq.loading")
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "good.yaml"
    path.write_text("")
    [message] = reported(settings, path)
    assert message == "REDIS_QUEUE is set, and yaml is not installed."
