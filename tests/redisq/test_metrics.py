"""Metrics: their names, their labels, and what they count."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq import signals
from jobreaper.redisq.breaker import BreakerState
from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.metrics import MOST_QUEUES, Metrics
from jobreaper.redisq.moves import Move
from jobreaper.redisq.producer import signals as producer_signals
from tests.metrics.promtool import needs_promtool, promtool
from tests.redisq.listening import own_receivers
from tests.redisq.places import job, push

Value = Callable[..., float | None]


@pytest.fixture
def metrics(config: Config) -> Iterator[Metrics]:
    found = Metrics(config)
    with own_receivers():
        found.connect()
        yield found


@pytest.fixture
def value(metrics: Metrics) -> Value:
    """The value of a sample, or None where there is none."""
    return lambda name, **labels: metrics.registry.get_sample_value(name, labels)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])


def send_everything(keys: Keys) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    about: dict[str, Any] = {"worker_id": "w", "queue": high, "job": job()}
    failed = about | {"error": ValueError("x"), "duration_sec": 2.0}
    producer_signals.jobs_pushed.send(
        sender=object, jobs=[job(1, origin_queue=high), job(2, origin_queue=low)]
    )
    signals.job_fetched.send(sender=object, **about)
    signals.run_ended.send(sender=object, **about, error=None, duration_sec=0.25)
    signals.job_completed.send(sender=object, **about, duration_sec=0.25)
    signals.run_ended.send(sender=object, **failed)
    signals.job_retried.send(sender=object, **failed, delay_sec=1.0)
    signals.run_ended.send(sender=object, **failed)
    letter: dict[str, Any] = {"detail": "", "entry": b"", "worker_id": "w"}
    signals.job_dead_lettered.send(sender=object, queue=high, job=job(), reason="failed", **letter)
    signals.job_dead_lettered.send(
        sender=object, queue=None, job=None, reason="malformed", **letter
    )
    signals.stale_completion.send(sender=object, **about, verb="finish")
    moves = [
        Move(worker_id="w", entry=b"", target=low, text=b"", queue=low, job=job()),
        Move(worker_id="w", entry=b"", target="d", text=b"", queue=low, reason="worker_lost"),
    ]
    signals.job_moved.send(sender=object, moves=moves, reaper="r")
    signals.breaker_changed.send(
        sender=object, queue=low, before=BreakerState.CLOSED, state=BreakerState.OPEN
    )


def test_each_thing_that_happens_is_counted_under_its_queue(
    metrics: Metrics, value: Value, keys: Keys
) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    send_everything(keys)
    assert value("jobs_produced_total", queue=high) == 1
    assert value("jobs_produced_total", queue=low) == 1
    assert value("jobs_consumed_total", queue=high) == 1
    assert value("jobs_completed_total", queue=high) == 1
    assert value("jobs_retried_total", queue=high) == 1
    assert value("jobs_failed_total", queue=high, reason="error") == 2
    assert value("jobs_failed_total", queue="other", reason="malformed") == 1
    assert value("jobs_failed_total", queue=low, reason="worker_lost") == 2
    assert value("jobs_dead_letter_total", queue=high) == 1
    assert value("jobs_dead_letter_total", queue="other") == 1
    assert value("jobs_dead_letter_total", queue=low) == 1
    assert value("jobs_stale_total", queue=high) == 1
    assert value("reaper_jobs_moved_total", queue=low) == 2
    assert value("job_processing_duration_seconds_count", queue=high) == 3
    assert value("job_processing_duration_seconds_sum", queue=high) == 4.25
    assert value("circuit_breaker_state", queue=high) == 0
    assert value("circuit_breaker_state", queue=low) == 2


def test_lengths_are_read_from_redis(
    metrics: Metrics, value: Value, client: redis.Redis, keys: Keys
) -> None:
    high, low = keys.queues["high"], keys.queues["low"]
    push(client, high, job(1), job(2))
    client.zadd(keys.delayed(low), {"x": 1})
    client.set(keys.completed, "no list")
    metrics.sample(client)
    assert value("queue_length", queue=high) == 2
    assert value("queue_length", queue=low) == 0
    assert value("queue_length", queue=keys.dead_letter) == 0
    assert value("queue_length", queue=keys.completed) is None
    assert value("queue_delayed_length", queue=low) == 1
    assert value("redis_up") == 1


def test_while_redis_is_away_no_old_lengths_are_shown(
    metrics: Metrics, value: Value, client: redis.Redis, keys: Keys
) -> None:
    metrics.sample(client)
    away = from_document({"redis": {"addr": "/nowhere/redis.sock", "max_retries": 0}})
    with connect(away) as absent:
        metrics.sample(absent)
        assert value("queue_length", queue=keys.queues["high"]) is None
        assert value("redis_up") == 0
    metrics.sample(client)
    assert value("queue_length", queue=keys.queues["high"]) == 0


def test_there_are_never_more_than_fifty_queues(make_config: Callable[..., Config]) -> None:
    queues = {f"p{number}": f"many:{number}" for number in range(80)}
    worker = {"queues": queues, "priorities": list(queues)}
    metrics = Metrics(from_document({"worker": worker, "producer": {"default_priority": "p0"}}))
    with own_receivers():
        metrics.connect()
        for name in [*queues.values(), *(f"unknown:{number}" for number in range(100))]:
            signals.job_fetched.send(sender=object, worker_id="w", queue=name, job=job())
    seen = {
        sample.labels["queue"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "queue" in sample.labels
    }
    assert len(seen) == MOST_QUEUES
    assert "other" in seen
    count = metrics.registry.get_sample_value("jobs_consumed_total", {"queue": "other"})
    assert count == 80 + 100 - (MOST_QUEUES - 1)


def test_an_origin_that_a_foreign_program_made_up_is_no_label(
    metrics: Metrics, value: Value
) -> None:
    hostile = Job(id="1", filepath="/a", origin_queue='x"}\n')
    producer_signals.jobs_pushed.send(sender=object, jobs=[hostile])
    assert value("jobs_produced_total", queue="other") == 1


@pytest.fixture
def page(make_config: Callable[..., Config], keys: Keys, client: redis.Redis) -> Iterator[str]:
    """What is served after everything has happened."""
    port = free_port()
    metrics = Metrics(make_config(observability={"metrics_port": port}))
    with own_receivers():
        metrics.connect()
        send_everything(keys)
        metrics.sample(client)
        server = metrics.serve()
        try:
            address = f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(address, timeout=20) as answer:
                yield answer.read().decode()
        finally:
            server.shutdown()
            server.server_close()


def test_the_documented_names_are_served(page: str) -> None:
    names = {family.name: family.type for family in text_string_to_metric_families(page)}
    counters = ("jobs_produced", "jobs_consumed", "jobs_completed", "jobs_failed", "jobs_retried")
    for name in (*counters, "jobs_dead_letter", "reaper_jobs_moved"):
        assert names[name] == "counter"
        assert f"{name}_total{{" in page
    assert names["job_processing_duration_seconds"] == "histogram"
    assert names["queue_length"] == names["circuit_breaker_state"] == "gauge"


@needs_promtool
def test_promtool_accepts_what_is_served(page: str) -> None:
    checked = promtool("check", "metrics", text=page)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_port_that_is_taken_is_said(make_config: Callable[..., Config]) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        metrics = Metrics(make_config(observability={"metrics_port": port}))
        with pytest.raises(ConfigurationError, match=f"METRICS_PORT.* {port} cannot be used"):
            metrics.serve()


def test_port_0_opens_none(config: Config) -> None:
    assert Metrics(config).serve() is None


def test_sampling_ends_when_it_is_told(metrics: Metrics, client: redis.Redis, value: Value) -> None:
    stop = threading.Event()
    stop.set()
    metrics.sample_until(stop, client)
    assert value("redis_up") == 0
