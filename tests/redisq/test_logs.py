"""Log lines have the documented keys, and nothing that a job or a password contains."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from jobreaper.redisq import logs, signals
from jobreaper.redisq.breaker import BreakerState
from jobreaper.redisq.config import Config
from jobreaper.redisq.dead_letters import DeadLetter
from jobreaper.redisq.job import Job
from jobreaper.redisq.moves import Move
from jobreaper.redisq.producer import Tally
from jobreaper.redisq.producer import signals as producer_signals
from jobreaper.redisq.producer.scanning import Why
from tests.redisq.listening import own_receivers

PASSWORD = "correct horse"
CONTENT = "what the job contains"

JOB = Job(
    id="job-1",
    filepath="/data/1.pdf",
    trace_id="a" * 32,
    span_id="b" * 16,
    extra={"content": CONTENT, "request_id": "req-7"},
)
ABOUT: dict[str, Any] = {"worker_id": "w-1", "queue": "q:high", "job": JOB}

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(make_config: Callable[..., Config]) -> Iterator[Lines]:
    """All lines of this process since the test began."""
    config = make_config(redis={"password": PASSWORD}, observability={"log_level": "debug"})
    stream = io.StringIO()
    with logs.written(config, stream), own_receivers():
        logs.connect()
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def send_everything() -> None:
    """Let everything happen that is logged."""
    error = ValueError(CONTENT)
    for signal, arguments in (
        (signals.job_fetched, ABOUT),
        (signals.job_completed, ABOUT | {"duration_sec": 0.25}),
        (signals.job_retried, ABOUT | {"error": error, "delay_sec": 1, "duration_sec": 1}),
        (
            signals.job_dead_lettered,
            ABOUT | {"reason": "failed", "detail": CONTENT, "entry": JOB.encode()},
        ),
        (signals.job_released, ABOUT),
        (signals.job_lost, ABOUT),
        (signals.stale_completion, ABOUT | {"verb": "finish"}),
        (
            signals.breaker_changed,
            {"queue": "q", "before": BreakerState.CLOSED, "state": BreakerState.HALF_OPEN},
        ),
        (
            signals.redis_failed,
            {"worker_id": "w", "verb": "fetch", "error": redis.ConnectionError("refused")},
        ),
        (producer_signals.jobs_pushed, {"jobs": [JOB]}),
        (producer_signals.file_skipped, {"path": "/data/a\nb%s", "why": Why.GONE}),
        (producer_signals.progressed, {"tally": Tally(found=1200), "done": True}),
        (producer_signals.watch_refused, {"error": OSError(28, "no space")}),
    ):
        for _, result in signal.send_robust(sender=object, **arguments):
            assert result is None, result
    letter = DeadLetter(entry=JOB.encode(), reason="worker_lost", detail=CONTENT)
    moves = [
        Move(
            worker_id="w-2", entry=JOB.encode(), target="q", text=JOB.encode(), queue="q", job=JOB
        ),
        Move(worker_id="w-2", entry=b"\xff", target="d", text=letter.encode(), reason="malformed"),
    ]
    for _, result in signals.job_moved.send_robust(sender=object, moves=moves, reaper="r"):
        assert result is None, result


def test_every_line_has_the_documented_keys_and_no_content(lines: Lines) -> None:
    send_everything()
    found = lines()
    assert len(found) == 16
    for line in found:
        assert set(line) <= set(logs.KEYS)
        assert {"level", "ts", "msg", "namespace"} <= set(line)
        assert CONTENT not in json.dumps(line)
        assert all(isinstance(value, str) for value in line.values())


def test_a_line_about_a_job_tells_where_it_belongs(
    lines: Lines, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals.job_completed.send_robust(sender=object, **ABOUT, duration_sec=0.25)
    (line,) = lines()
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "msg": "completed in 250 ms",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "job_id": "job-1",
        "queue": "q:high",
        "worker_id": "w-1",
        "request_id": "req-7",
        "namespace": prefix,
    }


def test_the_namespace_of_kubernetes_counts_before_that_of_the_keys(
    config: Config, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logs.namespace(config) == prefix
    monkeypatch.setenv("POD_NAMESPACE", "production")
    assert logs.namespace(config) == "production"


@pytest.mark.parametrize(
    "given",
    [
        {"filepath": "/a"},
        {"job": "1"},
        {"level": "info"},
        {"namespace": "x"},
        {"job_id": JOB},
        {"job_id": 7},
        {"queue": JOB.encode()},
        {"worker_id": {"a": 1}},
    ],
)
def test_other_keys_and_values_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        logs.log(logging.INFO, "something", **given)


def test_a_payload_is_too_long_for_a_value() -> None:
    with pytest.raises(ValueError, match="longer than"):
        logs.log(logging.INFO, "something", job_id="x" * 256)


def test_long_ids_of_foreign_programs_are_cut(lines: Lines) -> None:
    job = Job(id="x" * 100_000, filepath="/a", extra={"request_id": ["no text"]})
    signals.job_fetched.send_robust(sender=object, worker_id="w", queue="q", job=job)
    (line,) = lines()
    assert len(line["job_id"]) == logs.LONGEST_VALUE
    assert "request_id" not in line


def test_a_password_is_masked_in_every_line_of_the_process(lines: Lines) -> None:
    logs.log(logging.INFO, f"AUTH {PASSWORD} failed", worker_id=f"w-{PASSWORD}")
    logging.getLogger("somebody.else").error("it is %s", PASSWORD)
    try:
        raise ValueError(PASSWORD)
    except ValueError:
        logging.getLogger("jobreaper.redisq.inner").exception("went wrong")
    found = lines()
    assert PASSWORD not in json.dumps(found)
    assert found[0]["msg"] == "AUTH *** failed"
    assert found[-1]["msg"] == "went wrong (ValueError)"


def test_a_line_is_one_line_whatever_a_path_contains(lines: Lines) -> None:
    path = "/data/a\nb\x1b[31m%s\udcff"
    producer_signals.file_skipped.send_robust(sender=object, path=path, why=Why.NAME)
    (line,) = lines()
    assert line["msg"] == "skipped, as its name is not UTF-8: /data/a\nb\x1b[31m%s\\udcff"


def test_the_level_of_the_configuration_counts(
    lines: Lines, make_config: Callable[..., Config]
) -> None:
    logging.getLogger(logs.LOGGER).setLevel("WARNING")
    send_everything()
    assert {line["level"] for line in lines()} == {"warning", "error"}
