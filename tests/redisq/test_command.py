"""`manage.py redisq` says what is wrong before it starts."""

import io
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from django.core.management import CommandError, call_command

from jobreaper import conf
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document, load
from tests.redisq.listening import own_receivers

MakeDocument = Callable[..., dict[str, Any]]


def run(*arguments: str) -> tuple[str, str]:
    """What the command prints, and what it says beside."""
    out, errors = io.StringIO(), io.StringIO()
    call_command("redisq", *arguments, stdout=out, stderr=errors)
    return out.getvalue(), errors.getvalue()


def refused(*arguments: str) -> tuple[str, int]:
    """What the command says when it refuses, and its exit code."""
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return str(caught.value), caught.value.returncode


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    """What the command has connected is for a process of its own."""
    with own_receivers():
        yield


@pytest.fixture
def written(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Write a configuration; return its path."""

    def write(document: dict[str, Any]) -> str:
        path = tmp_path / "redisq.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return write


def test_the_configuration_in_force_is_printed_without_passwords(
    written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_BACKOFF_BASE", "200ms")
    monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
    out, _ = run("--check-config", "--config", written({"worker": {"count": 3}}))
    printed = yaml.safe_load(out)
    assert printed["worker"]["count"] == 3
    assert printed["worker"]["backoff"] == {"base": "200ms", "max": "10s"}
    assert printed["redis"]["password"] == "**********"
    assert "hunter2" not in out


def test_what_is_printed_can_be_read_again(written: Callable[..., str], tmp_path: Path) -> None:
    out, _ = run("--check-config", "--config", written({"worker": {"heartbeat_ttl": "1m30s"}}))
    (tmp_path / "again.yaml").write_text(out)
    assert load(tmp_path / "again.yaml") == from_document({"worker": {"heartbeat_ttl": "1m30s"}})


def test_a_missing_file_means_the_defaults_and_is_said(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    out, errors = run("--check-config", "--config", missing)
    assert yaml.safe_load(out)["worker"]["count"] == 16
    assert f"{missing} does not exist: the defaults are in force" in errors


def test_all_faults_are_said_at_once_and_the_exit_code_is_2(written: Callable[..., str]) -> None:
    path = written({"worker": {"count": 0, "heartbeat_ttl": "1s"}, "redis": {"db": -1}})
    said, code = refused("--check-config", "--config", path)
    assert code == 2
    assert said.splitlines() == [
        "redis.db (REDIS_DB) must be 0 or more",
        "worker.count (WORKER_COUNT) must be 1 or more",
        "worker.heartbeat_ttl (WORKER_HEARTBEAT_TTL) must be 5s or more",
    ]


def test_the_setting_names_the_file_where_the_option_does_not(
    written: Callable[..., str], settings: Any
) -> None:
    settings.JOBREAPER = {"REDIS_QUEUE": written({"worker": {"count": 5}})}
    conf.reset()
    out, _ = run("--check-config")
    assert yaml.safe_load(out)["worker"]["count"] == 5


@pytest.mark.parametrize("role", ["producer", "worker", "all"])
def test_a_redis_that_cannot_be_reached_is_said_and_the_exit_code_is_1(
    role: str, make_document: MakeDocument, written: Callable[..., str], tmp_path: Path
) -> None:
    away = {"addr": "/nowhere/redis.sock", "max_retries": 0, "password": "hunter2", "db": 0}
    worker = make_document()["worker"] | {"handler": "tests.redisq.handlers.handle"}
    producer = {"scan_dir": str(tmp_path)}
    document = make_document(redis=away, worker=worker, producer=producer)
    said, code = refused("--role", role, "--config", written(document))
    assert code == 1
    assert "/nowhere/redis.sock" in said
    assert "hunter2" not in said


def test_a_role_that_cannot_run_as_configured_is_said(
    make_document: MakeDocument, written: Callable[..., str]
) -> None:
    said, code = refused("--role", "worker", "--config", written(make_document()))
    assert (code, "WORKER_HANDLER" in said) == (2, True)
    document = make_document(producer={"scan_dir": "/nowhere"})
    said, code = refused("--role", "producer", "--config", written(document))
    assert (code, "PRODUCER_SCAN_DIR" in said) == (2, True)


def test_a_port_that_is_taken_is_said(
    make_document: MakeDocument, written: Callable[..., str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        document = make_document(
            producer={"scan_dir": str(tmp_path)},
            observability={"metrics_port": taken.getsockname()[1]},
        )
        said, code = refused("--role", "producer", "--once", "--config", written(document))
    assert (code, "METRICS_PORT" in said) == (2, True)


def test_a_producer_that_runs_once_ends_by_itself(
    make_document: MakeDocument,
    written: Callable[..., str],
    tmp_path: Path,
    client: redis.Redis,
    keys: Keys,
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.pdf").write_text("x")
    document = make_document(producer={"scan_dir": str(tmp_path / "files")})
    _, errors = run("--role", "producer", "--once", "--config", written(document))
    assert client.llen(keys.queues["high"]) == 1
    assert "1 found, 1 enqueued, 0 skipped" in errors


def test_once_is_for_producers() -> None:
    said, code = refused("--role", "all", "--once")
    assert (code, "--role=producer" in said) == (2, True)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that the module is imported anew, without what it needs.
    monkeypatch.delattr("jobreaper.redisq.loading")
    monkeypatch.delitem(sys.modules, "jobreaper.redisq.loading")
    monkeypatch.setitem(sys.modules, "pydantic", None)
    said, code = refused("--check-config")
    assert code == 2
    assert said == "pydantic is not installed: pip install 'jobreaper[redisq]'"
