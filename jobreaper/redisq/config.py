"""The configuration of the Redis queue: a YAML file, with the environment before it.

Each key has a name in the environment too: its path in upper snake case, so that
``worker.backoff.base`` is ``WORKER_BACKOFF_BASE``. Lists are written there with commas or as JSON,
mappings as ``name=value`` with commas or as JSON. Durations are seconds once they are read.

``load()`` and ``from_document()`` are the ways to a ``Config``: they report everything wrong at
once. Rules about single keys are here, and rules about several in ``rules.py``.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from jobreaper.redisq import durations

# A port of TCP; 0 means that no port is opened.
LARGEST_PORT = 65_535


def _positive(seconds: float) -> float:
    if not seconds:
        raise ValueError("must be more than 0")
    return seconds


def _list(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _json(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _mapping(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _json(value)
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("must be name=value, with commas between, or JSON")
    return {name.strip(): each.strip() for name, _, each in pairs}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be JSON: {error}") from None


def _without_user(url: str) -> str:
    # What is printed as it stands must not contain a password.
    if "@" in url:
        raise ValueError("must not contain a user or password: they have keys of their own")
    return url


def _address(addr: str) -> str:
    _without_user(addr)
    if addr.startswith(("/", "unix:///")):
        return addr
    scheme, separator, _ = addr.partition("://")
    if separator and scheme not in ("redis", "rediss"):
        raise ValueError("must be host:port, redis://, rediss:// or the path of a socket")
    try:
        parts = urlsplit(addr if separator else f"redis://{addr}")
        known = bool(parts.hostname) and parts.port is not None
    except ValueError:
        known = False
    if not known or parts.path.strip("/") or parts.query:
        raise ValueError("must be host:port, redis://host:port or the path of a socket")
    return addr


def _endpoint(url: str) -> str:
    _without_user(url)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("must start with http:// or https://")
    return url


def _pattern(pattern: str) -> str:
    if pattern.count("%") != 1 or "%s" not in pattern:
        raise ValueError("must contain %s once, for the worker's id, and no other %")
    if pattern == "%s":
        raise ValueError("must contain more than %s, or every key would match it")
    return pattern


def _extension(text: str) -> str:
    return "." + text.strip().lower().lstrip(".")


Duration = Annotated[
    float,
    BeforeValidator(durations.parse_duration),
    PlainSerializer(durations.format_duration),
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_list)]
TextMap = Annotated[dict[Text, Text], BeforeValidator(_mapping)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Extension = Annotated[Text, AfterValidator(_extension)]
Extensions = Annotated[tuple[Extension, ...], BeforeValidator(_list)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Section(BaseModel):
    """Some keys of one subject. It refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Redis(Section):
    """How to reach the server."""

    addr: Annotated[Text, AfterValidator(_address)] = "localhost:6379"
    username: str | None = None
    password: SecretStr | None = None
    db: Annotated[int, Field(ge=0)] = 0
    pool_size_multiplier: Annotated[int, Field(ge=1)] = 10
    min_idle_conns: Annotated[int, Field(ge=0)] = 1
    dial_timeout: PositiveDuration = 5.0
    read_timeout: PositiveDuration = 3.0
    write_timeout: PositiveDuration = 3.0
    max_retries: Annotated[int, Field(ge=0)] = 3


class Backoff(Section):
    """The waits between the attempts of a job."""

    base: PositiveDuration = 0.5
    max: PositiveDuration = 10.0


class Worker(Section):
    """What workers do, and the keys that they share with those in other languages."""

    count: Annotated[int, Field(ge=1)] = 16
    heartbeat_ttl: PositiveDuration = 30.0
    max_retries: Annotated[int, Field(ge=0)] = 3
    backoff: Backoff = Backoff()
    priorities: Texts = ("high", "low")
    queues: TextMap = {"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"}
    processing_list_pattern: Pattern = "jobqueue:worker:%s:processing"
    heartbeat_key_pattern: Pattern = "jobqueue:processing:worker:%s"
    completed_list: Text = "jobqueue:completed"
    dead_letter_list: Text = "jobqueue:dead_letter"
    brpoplpush_timeout: PositiveDuration = 1.0
    handler: Text | None = None


class Producer(Section):
    """Which files become jobs, and how fast."""

    scan_dir: Text = "./data"
    include_globs: Texts = ("**/*",)
    exclude_globs: Texts = ("**/*.tmp", "**/.DS_Store")
    default_priority: Text = "low"
    high_priority_exts: Extensions = (".pdf", ".docx", ".xlsx", ".zip")
    rate_limit_per_sec: Annotated[int, Field(ge=0)] = 100
    rate_limit_key: Text = "jobqueue:rate_limit:producer"


class CircuitBreaker(Section):
    """When a queue whose jobs fail is left alone for a while."""

    failure_threshold: Annotated[Number, Field(gt=0, le=1)] = 0.5
    window: PositiveDuration = 60.0
    cooldown_period: PositiveDuration = 30.0
    min_samples: Annotated[int, Field(ge=1)] = 20


class Tracing(Section):
    """Where spans are sent."""

    enabled: bool = False
    endpoint: Annotated[Text, AfterValidator(_endpoint)] | None = None


class Observability(Section):
    """What can be seen from outside."""

    metrics_port: Annotated[int, Field(ge=0, le=LARGEST_PORT)] = 9090
    log_level: LogLevel = "info"
    queue_sample_interval: PositiveDuration = 2.0
    tracing: Tracing = Tracing()


class Reaper(Section):
    """How often and how gently lists of dead workers are looked for."""

    interval: PositiveDuration = 5.0
    scan_count: Annotated[int, Field(ge=1)] = 100
    pass_budget: PositiveDuration = 0.2
    base_delay: Duration = 0.01


class Config(BaseSettings):
    """The whole configuration. Make one with ``load()`` or ``from_document()``."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    redis: Redis = Redis()
    worker: Worker = Worker()
    producer: Producer = Producer()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    observability: Observability = Observability()
    reaper: Reaper = Reaper()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what ``loading.py`` has put together, of the environment and the file."""
        return (init_settings,)


class Environment(PydanticBaseSettingsSource):
    """The environment, by the path of each key. pydantic-settings' own source would have to guess
    where ``CIRCUIT_BREAKER_MIN_SAMPLES`` is to be split.
    """

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return what the environment says about one section."""
        return _from_environment(field.annotation, (field_name,)), field_name, True

    def __call__(self) -> dict[str, Any]:
        """Return what the environment says about all sections."""
        found = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: values for name, values in found.items() if values}


def _from_environment(section: Any, path: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        below = (*path, name)
        if is_section(field.annotation):
            if values := _from_environment(field.annotation, below):
                found[name] = values
        # An empty variable means "not set" in a compose file or a systemd unit.
        elif raw := os.environ.get(environment_name(below), "").strip():
            found[name] = raw
    return found


def is_section(annotation: object) -> bool:
    """Return whether a field with this annotation is a section, and not a value."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def environment_name(path: tuple[str, ...]) -> str:
    """Return the environment's name for the key at ``path``."""
    return "_".join(path).upper()
