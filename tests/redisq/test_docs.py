"""The pages about the Redis queue say what the code does."""

from dataclasses import fields
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

from jobreaper.redisq import logs
from jobreaper.redisq.config import Config, is_section
from jobreaper.redisq.durations import format_duration
from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.metrics import Metrics
from jobreaper.redisq.tracing import _ENDS
from tests.docs import markdown

REFERENCE = markdown.page("redis-queue-reference")


def documented(heading: str) -> list[list[str]]:
    return markdown.rows(markdown.section(REFERENCE, heading))


def values(section: Any, found: Any, above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        below, value = f"{above}{name}", getattr(found, name)
        if is_section(field.annotation):
            flat |= values(field.annotation, value, f"{below}.")
        else:
            flat[below] = value
    return flat


def as_documented(key: str, value: Any) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return ", ".join(f"`{each}`" for each in value)
        case dict():
            return ", ".join(f"`{name}: {each}`" for name, each in value.items())
        case float() if key != "circuit_breaker.failure_threshold":
            return f"`{format_duration(value)}`"
    return f"`{value}`"


def test_the_keys_of_the_configuration_and_their_defaults() -> None:
    found = {
        markdown.code(key)[0]: default
        for section in Config.model_fields
        for key, default, _ in documented(section)
    }
    config = from_document({})
    assert found == {
        key: as_documented(key, value) for key, value in values(Config, config).items()
    }


def test_the_keys_of_a_job() -> None:
    found = [markdown.code(key)[0] for key, *_ in documented("Jobs")]
    assert found == [each.name for each in fields(Job) if each.name != "extra"]


def test_the_keys_of_the_producer() -> None:
    found = {markdown.code(key)[0] for key, *_ in documented("Keys of the producer")}
    keys = Keys.of(from_document({}))
    assert found == {keys.named("known_files"), keys.rate_limit}


def test_the_keys_of_log_lines() -> None:
    found = [name for key, _ in documented("Log lines") for name in markdown.code(key)]
    assert tuple(found) == logs.KEYS


def test_the_metrics_with_their_types_and_labels() -> None:
    metrics = Metrics(from_document({}))
    served = {
        (each._name + ("_total" if each._type == "counter" else ""), each._type, each._labelnames)
        for each in vars(metrics).values()
        if isinstance(each, MetricWrapperBase)
    }
    found = {
        (markdown.code(name)[0], kind, tuple(markdown.code(labels)))
        for name, kind, labels, _ in documented("Metrics")
    }
    assert found == served


def test_the_outcomes_of_spans() -> None:
    page = markdown.section(REFERENCE, "Traces")
    for outcome in _ENDS.values():
        assert f"`{outcome}`" in page


def test_the_configuration_that_is_shown_is_one() -> None:
    [shown] = markdown.blocks(markdown.page("redis-queue"), "yaml")
    config = from_document(yaml.safe_load(shown.code))
    assert config.worker.handler == "reports.scans.read"
