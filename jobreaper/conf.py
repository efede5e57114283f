"""Settings: the ``JOBREAPER`` dict and the environment become one frozen object.

Precedence for each value: the dict, then the environment's ``JOB_*``/``REAPER_*`` name, then the
older ``QUEUE_*`` name, then the default. ``settings()`` reads lazily and raises
``ConfigurationError`` with every problem at once; ``manage.py check`` reports the same problems.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from jobreaper import policies, values
from jobreaper.exceptions import ConfigurationError
from jobreaper.policies import LONGEST_MS, StagePolicy

T = TypeVar("T")

INTERVAL: Final = ("REAPER_INTERVAL_SEC",)
MAX_ATTEMPTS: Final = ("JOB_MAX_ATTEMPTS", "QUEUE_MAX_ATTEMPTS")
LEASE: Final = ("DEFAULT_LEASE_SEC", "QUEUE_VISIBILITY_SEC")
HEARTBEAT: Final = ("HEARTBEAT_SEC",)
GRACE: Final = ("RECOVERY_GRACE_SEC",)
DISPATCH_INTERVAL: Final = ("DISPATCH_INTERVAL_SEC",)
DISPATCH_AGAIN: Final = ("DISPATCH_AGAIN_SEC",)
BACKOFF_BASE: Final = ("JOB_RETRY_BACKOFF_MS_BASE", "QUEUE_RETRY_BACKOFF_MS_BASE")
BACKOFF_MAX: Final = ("JOB_RETRY_BACKOFF_MS_MAX", "QUEUE_RETRY_BACKOFF_MS_MAX")
TICK_TOKEN: Final = ("TICK_TOKEN",)
STAGES: Final = "STAGES"
RETENTION: Final = "RETENTION"
SLA_FACTOR_SUFFIX: Final = "_SLA_FACTOR"

# An environment is shared with other programs, so there the name carries the package's.
TICK_TOKEN_ENVIRONMENT: Final = "JOBREAPER_TICK_TOKEN"  # noqa: S105  a name

DEFAULT_INTERVAL_SEC: Final = 60.0
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_LEASE_SEC: Final = 300.0
DEFAULT_HEARTBEAT_SEC: Final = 15.0
DEFAULT_DISPATCH_INTERVAL_SEC: Final = 5.0
DEFAULT_DISPATCH_AGAIN_SEC: Final = 120.0
DEFAULT_BACKOFF_MAX_MS: Final = policies.DEFAULT_BACKOFF_MS[-1]
DEFAULT_SLA_FACTORS: Final = MappingProxyType({"clip": 6.0, "asr": 12.0, "burnin": 8.0})
DEFAULT_RETENTION: Final = MappingProxyType(
    {
        "success": "7d",
        "failed": "30d",
        "cancelled": "30d",
        "events": "30d",
        "passes": "7d",
    }
)

DICT_KEYS: Final = (
    *INTERVAL,
    *MAX_ATTEMPTS,
    *LEASE,
    *HEARTBEAT,
    *GRACE,
    *DISPATCH_INTERVAL,
    *DISPATCH_AGAIN,
    *BACKOFF_BASE,
    *BACKOFF_MAX,
    *TICK_TOKEN,
    *(f"{stage.upper()}{SLA_FACTOR_SUFFIX}" for stage in DEFAULT_SLA_FACTORS),
    STAGES,
    RETENTION,
)
# A beat this large a part of the shortest lease leaves too few tries before the lease ends.
RISKY_BEAT_SHARE: Final = 1 / 3
UNSAFE_BEAT_SHARE: Final = 1 / 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the settings: a stable check id, what is wrong, what to do."""

    id: str
    message: str
    hint: str

    @property
    def is_error(self) -> bool:
        """Return whether the settings cannot be used at all."""
        return self.id.startswith("E")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, checked and in its final unit. Names end in their unit."""

    reaper_interval_sec: float = DEFAULT_INTERVAL_SEC
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    heartbeat_sec: float = DEFAULT_HEARTBEAT_SEC
    recovery_grace_sec: float = 2 * DEFAULT_HEARTBEAT_SEC
    dispatch_interval_sec: float = DEFAULT_DISPATCH_INTERVAL_SEC
    dispatch_again_sec: float = DEFAULT_DISPATCH_AGAIN_SEC
    default_policy: StagePolicy = field(default_factory=StagePolicy)
    stages: Mapping[str, StagePolicy] = field(default_factory=lambda: MappingProxyType({}))
    retention_sec: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    tick_token: str | None = field(default=None, repr=False)

    def policy(self, stage: str | None) -> StagePolicy:
        """Return the policy of ``stage``, the default policy where it has none of its own."""
        return self.stages.get(stage or "", self.default_policy)

    @cached_property
    def policies_json(self) -> str:
        """The policies as the JSON array that the SQL statements read."""
        rows = [self.default_policy, *self.stages.values()]
        return json.dumps([policy.as_row() for policy in rows])

    @cached_property
    def limited_stages(self) -> frozenset[str]:
        """The stages that have a ``max_running``."""
        return frozenset(s for s, policy in self.stages.items() if policy.max_running is not None)

    def limits_any_of(self, stages: Iterable[str] | None) -> bool:
        """Return whether one of ``stages``, of all stages for ``None``, has a ``max_running``."""
        limited = self.limited_stages
        return bool(limited) and (stages is None or not limited.isdisjoint(stages))

    @cached_property
    def limits_json(self) -> str:
        """Each ``max_running`` as the JSON array that the SQL statements read."""
        return json.dumps(
            [
                {"stage": stage, "max_running": self.stages[stage].max_running}
                for stage in sorted(self.limited_stages)
            ]
        )

    @property
    def shortest_lease_sec(self) -> float:
        """The shortest lease that any stage can have."""
        return min(p.lease_sec for p in (self.default_policy, *self.stages.values()))

    @property
    def shortest_run_sec(self) -> float:
        """The shortest lease or ``max_runtime`` that any stage has."""
        deadlines = (p.max_runtime_sec for p in self.stages.values())
        return min([self.shortest_lease_sec, *(sec for sec in deadlines if sec is not None)])


_STAGE_PARSERS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = MappingProxyType(
    {
        "lease": ("lease_sec", values.positive_duration),
        "sla_factor": ("sla_factor", values.factor),
        "max_runtime": ("max_runtime_sec", values.optional(values.positive_duration)),
        "backoff": ("backoff_ms", values.backoff),
        "on_expiry": ("on_expiry", values.on_expiry),
        "max_reaps": ("max_reaps", values.optional(values.count)),
        "ttl": ("ttl_sec", values.optional(values.positive_duration)),
        "max_running": ("max_running", values.optional(values.count)),
        "queue": ("queue", values.optional(values.text)),
        "priority": ("priority", values.optional(values.priority)),
    }
)


class _Reader:
    """Reads one value at a time and collects what is wrong instead of stopping at the first."""

    def __init__(self, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.given = given
        self.environment = environment
        self.problems: list[Problem] = []

    def bad_value(self, name: str, value: object, why: object, *, is_secret: bool = False) -> None:
        what = "a bad value" if is_secret else f"the bad value {value!r}"
        self.problems.append(
            Problem(
                "E002",
                f"{name} has {what}: {why}.",
                f"Correct {name}.",
            )
        )

    def unknown(self, where: str, key: object, known: Iterable[str]) -> None:
        names = list(known)
        nearest = get_close_matches(str(key).upper(), [name.upper() for name in names], n=1)
        by_upper = {name.upper(): name for name in names}
        hint = (
            f"Did you mean {by_upper[nearest[0]]!r}?"
            if nearest
            else f"Valid keys: {', '.join(names)}."
        )
        self.problems.append(Problem("E001", f"{where} has the unknown key {key!r}.", hint))

    def value(
        self,
        names: tuple[str, ...],
        parse: Callable[[object], T],
        default: T,
        *,
        variables: tuple[str, ...] | None = None,
        is_secret: bool = False,
    ) -> T:
        """Return the first value that is given under ``names``, in the environment under
        ``variables`` where those differ. A secret's value is in no problem's words.
        """
        sources: list[tuple[str, object]] = [
            (f"JOBREAPER[{name!r}]", self.given[name]) for name in names if name in self.given
        ]
        # An empty variable is how a compose file or a unit says "not set".
        sources += [
            (f"environment variable {name}", self.environment[name])
            for name in variables or names
            if self.environment.get(name, "").strip()
        ]
        for name, raw in sources[:1]:
            try:
                return parse(raw)
            except ValueError as error:
                self.bad_value(name, raw, error, is_secret=is_secret)
        return default


def _env_name(stage: str) -> str:
    return re.sub(r"\W", "_", stage).upper() + SLA_FACTOR_SUFFIX


def _read_backoff(reader: _Reader) -> tuple[int, ...]:
    base = reader.value(BACKOFF_BASE, values.optional(values.milliseconds), None)
    longest = reader.value(BACKOFF_MAX, values.optional(values.milliseconds), None)
    if base is None:
        return policies.capped(policies.DEFAULT_BACKOFF_MS, longest or LONGEST_MS)
    return policies.exponential_backoff(base, longest or max(base, DEFAULT_BACKOFF_MAX_MS))


def _read_stage(
    reader: _Reader, stage: str, given: Mapping[str, Any], inherited: StagePolicy
) -> StagePolicy:
    changes: dict[str, Any] = {}
    for key, raw in given.items():
        where = f"JOBREAPER['{STAGES}'][{stage!r}]"
        if key not in _STAGE_PARSERS:
            reader.unknown(where, key, _STAGE_PARSERS)
            continue
        attribute, parse = _STAGE_PARSERS[key]
        try:
            changes[attribute] = parse(raw)
        except ValueError as error:
            reader.bad_value(f"{where}[{key!r}]", raw, error)
    return replace(inherited, stage=stage, **changes)


def _mapping(reader: _Reader, key: str) -> Mapping[str, Any]:
    value = reader.given.get(key, {})
    if isinstance(value, Mapping):
        return value
    reader.bad_value(f"JOBREAPER[{key!r}]", value, "it must be a dict")
    return {}


def _read_stages(reader: _Reader, default_policy: StagePolicy) -> dict[str, StagePolicy]:
    given = _mapping(reader, STAGES)
    names = {stage: _env_name(stage) for stage in DEFAULT_SLA_FACTORS}
    for stage in given:
        try:
            values.name(stage)
        except ValueError as error:
            reader.bad_value(f"a stage in JOBREAPER['{STAGES}']", stage, error)
        else:
            names[stage] = _env_name(stage)
    # A stage such as "burn-in" is BURN_IN in the environment; its own spelling wins.
    for name in map(str, (*reader.given, *reader.environment)):
        if name.endswith(SLA_FACTOR_SUFFIX) and name not in (SLA_FACTOR_SUFFIX, *names.values()):
            try:
                names[values.name(name.removesuffix(SLA_FACTOR_SUFFIX).lower())] = name
            except ValueError as error:
                reader.bad_value("the name of a stage's factor", name, error)
    stages = {}
    for stage, name in names.items():
        factor = reader.value((name,), values.factor, DEFAULT_SLA_FACTORS.get(stage, 0.0))
        options = given.get(stage, {})
        if not isinstance(options, Mapping):
            reader.bad_value(f"JOBREAPER['{STAGES}'][{stage!r}]", options, "it must be a dict")
            options = {}
        stages[stage] = _read_stage(
            reader, stage, options, replace(default_policy, sla_factor=factor)
        )
    return stages


def _read_retention(reader: _Reader) -> dict[str, float | None]:
    given = _mapping(reader, RETENTION)
    for key in given:
        if key not in DEFAULT_RETENTION:
            reader.unknown(f"JOBREAPER['{RETENTION}']", key, DEFAULT_RETENTION)
    ages: dict[str, float | None] = {}
    for key, default in DEFAULT_RETENTION.items():
        raw = given.get(key, default)
        try:
            ages[key] = values.optional(values.positive_duration)(raw)
        except ValueError as error:
            reader.bad_value(f"JOBREAPER['{RETENTION}'][{key!r}]", raw, error)
    return ages


def _judge_heartbeat(settings: Settings) -> Iterable[Problem]:
    shortest = settings.shortest_lease_sec
    share = settings.heartbeat_sec / shortest
    if share <= RISKY_BEAT_SHARE:
        return
    yield Problem(
        "E003" if share >= UNSAFE_BEAT_SHARE else "W001",
        f"HEARTBEAT_SEC is {settings.heartbeat_sec:g} s and the shortest lease is {shortest:g} s: "
        "a late beat would get a healthy job reaped.",
        f"Set HEARTBEAT_SEC to {shortest / 3:g} or less, or lengthen the lease.",
    )


def read(given: object, environment: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """Return the settings and everything wrong with them; a bad value counts as not given."""
    if not isinstance(given, Mapping):
        # Its value may hold the token.
        found = f"JOBREAPER is of type {type(given).__name__}."
        problem = Problem("E002", found, "JOBREAPER must be a dict.")
        return Settings(), [problem]
    reader = _Reader(given, environment)
    for key in given:
        if key not in DICT_KEYS and not str(key).endswith(SLA_FACTOR_SUFFIX):
            reader.unknown("JOBREAPER", key, DICT_KEYS)
    default_policy = StagePolicy(
        lease_sec=reader.value(LEASE, values.positive_duration, DEFAULT_LEASE_SEC),
        backoff_ms=_read_backoff(reader),
    )
    heartbeat_sec = reader.value(HEARTBEAT, values.positive_duration, DEFAULT_HEARTBEAT_SEC)
    settings = Settings(
        reaper_interval_sec=reader.value(INTERVAL, values.positive_duration, DEFAULT_INTERVAL_SEC),
        max_attempts=reader.value(MAX_ATTEMPTS, values.count, DEFAULT_MAX_ATTEMPTS),
        heartbeat_sec=heartbeat_sec,
        recovery_grace_sec=reader.value(GRACE, values.parse_duration, 2 * heartbeat_sec),
        dispatch_interval_sec=reader.value(
            DISPATCH_INTERVAL, values.positive_duration, DEFAULT_DISPATCH_INTERVAL_SEC
        ),
        dispatch_again_sec=reader.value(
            DISPATCH_AGAIN, values.positive_duration, DEFAULT_DISPATCH_AGAIN_SEC
        ),
        default_policy=default_policy,
        stages=MappingProxyType(_read_stages(reader, default_policy)),
        retention_sec=MappingProxyType(_read_retention(reader)),
        tick_token=reader.value(
            TICK_TOKEN,
            values.token,
            None,
            variables=(TICK_TOKEN_ENVIRONMENT,),
            is_secret=True,
        ),
    )
    return settings, [*reader.problems, *_judge_heartbeat(settings)]


def present() -> tuple[Settings, list[Problem]]:
    """Return the settings as they are now and everything wrong with them; nothing is kept, so it
    may be called while Django still reads its own settings.
    """
    return read(getattr(django_settings, "JOBREAPER", {}), os.environ)


def problems() -> list[Problem]:
    """Return what is wrong with the present settings, for ``manage.py check``."""
    return present()[1]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings, read once.

    Raises:
        ConfigurationError: something in them is wrong; the message names all of it.
    """
    result, found = present()
    errors = [f"{problem.message} {problem.hint}" for problem in found if problem.is_error]
    if errors:
        raise ConfigurationError("\n".join(errors))
    return result


def reset(*, setting: str = "JOBREAPER", **_: object) -> None:
    """Forget the settings read so far; also the receiver of Django's ``setting_changed``."""
    if setting == "JOBREAPER":
        settings.cache_clear()


setting_changed.connect(reset)
