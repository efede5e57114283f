"""Settings: turns the ``JOBREAPER`` dict and the environment into one frozen object.

Precedence for each value: the dict, then the environment's ``JOB_*``/``REAPER_*`` name, then the
older ``QUEUE_*`` name, then the default. ``settings()`` reads lazily and raises
``ConfigurationError`` with all problems at once; ``manage.py check`` reports the same problems.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from jobreaper import policies, timetable, values
from jobreaper.exceptions import ConfigurationError
from jobreaper.policies import LONGEST_MS, StagePolicy
from jobreaper.settings_reader import Problem, Reader
from jobreaper.timetable import Timetable

T = TypeVar("T")

INTERVAL: Final = ("REAPER_INTERVAL_SEC",)
MAX_ATTEMPTS: Final = ("JOB_MAX_ATTEMPTS", "QUEUE_MAX_ATTEMPTS")
LEASE: Final = ("DEFAULT_LEASE_SEC", "QUEUE_VISIBILITY_SEC")
HEARTBEAT: Final = ("HEARTBEAT_SEC",)
GRACE: Final = ("RECOVERY_GRACE_SEC",)
PRESENCE_GRACE: Final = ("PRESENCE_GRACE_SEC",)
PRESENCE_DATABASE: Final = ("PRESENCE_DATABASE",)
DISPATCH_INTERVAL: Final = ("DISPATCH_INTERVAL_SEC",)
DISPATCH_AGAIN: Final = ("DISPATCH_AGAIN_SEC",)
BACKOFF_BASE: Final = ("JOB_RETRY_BACKOFF_MS_BASE", "QUEUE_RETRY_BACKOFF_MS_BASE")
BACKOFF_MAX: Final = ("JOB_RETRY_BACKOFF_MS_MAX", "QUEUE_RETRY_BACKOFF_MS_MAX")
TICK_TOKEN: Final = ("TICK_TOKEN",)
NOTIFY: Final = ("NOTIFY",)
SESSION_SETTINGS: Final = ("SESSION_SETTINGS",)
REDIS_QUEUE: Final = ("REDIS_QUEUE",)
STAGES: Final = "STAGES"
RETENTION: Final = "RETENTION"
SCHEDULE: Final = "SCHEDULE"
QUEUES: Final = "QUEUES"
SLA_FACTOR_SUFFIX: Final = "_SLA_FACTOR"

# Once a day would be enough, but would never happen if what prunes restarts every day.
PRUNE_INTERVAL_SEC: Final = 3600.0

DEFAULT_INTERVAL_SEC: Final = 60.0
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_LEASE_SEC: Final = 300.0
DEFAULT_HEARTBEAT_SEC: Final = 15.0
DEFAULT_PRESENCE_GRACE_SEC: Final = 2.0
DEFAULT_DISPATCH_INTERVAL_SEC: Final = 5.0
DEFAULT_DISPATCH_AGAIN_SEC: Final = 120.0
DEFAULT_BACKOFF_MAX_MS: Final = policies.DEFAULT_BACKOFF_MS[-1]
DEFAULT_SLA_FACTORS: Final = MappingProxyType({"clip": 6.0, "asr": 12.0, "burnin": 8.0})
# What every session has that can be set, and that changes what a statement finds.
DEFAULT_SESSION_SETTINGS: Final = ("search_path", "role")
DEFAULT_RETENTION: Final = MappingProxyType(
    {
        "success": "7d",
        "failed": "30d",
        "cancelled": "30d",
        "events": "30d",
        "passes": "7d",
        "workers": "1d",
        "states": "30d",
    }
)

DICT_KEYS: Final = (
    *INTERVAL,
    *MAX_ATTEMPTS,
    *LEASE,
    *HEARTBEAT,
    *GRACE,
    *PRESENCE_GRACE,
    *PRESENCE_DATABASE,
    *DISPATCH_INTERVAL,
    *DISPATCH_AGAIN,
    *BACKOFF_BASE,
    *BACKOFF_MAX,
    *TICK_TOKEN,
    *NOTIFY,
    *SESSION_SETTINGS,
    *REDIS_QUEUE,
    *(f"{stage.upper()}{SLA_FACTOR_SUFFIX}" for stage in DEFAULT_SLA_FACTORS),
    STAGES,
    RETENTION,
    SCHEDULE,
    QUEUES,
)
_CLAIMS_BY: Final = ("lease_sec", "sla_factor", "max_runtime_sec", "stall_after_sec")

# With an interval this close to the shortest lease, too few heartbeats fit into the lease.
RISKY_BEAT_SHARE: Final = 1 / 3
UNSAFE_BEAT_SHARE: Final = 1 / 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, checked and converted. Names end in their unit."""

    reaper_interval_sec: float = DEFAULT_INTERVAL_SEC
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    heartbeat_sec: float = DEFAULT_HEARTBEAT_SEC
    recovery_grace_sec: float = 2 * DEFAULT_HEARTBEAT_SEC
    presence_grace_sec: float = DEFAULT_PRESENCE_GRACE_SEC
    presence_database: str | Mapping[str, str] | None = None
    dispatch_interval_sec: float = DEFAULT_DISPATCH_INTERVAL_SEC
    dispatch_again_sec: float = DEFAULT_DISPATCH_AGAIN_SEC
    default_policy: StagePolicy = field(default_factory=StagePolicy)
    stages: Mapping[str, StagePolicy] = field(default_factory=lambda: MappingProxyType({}))
    retention_sec: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    schedule: Mapping[str, Timetable | None] = field(default_factory=lambda: MappingProxyType({}))
    # How many jobs of a queue may run at once.
    queues: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    tick_token: str | None = field(default=None, repr=False)
    notify: bool = True
    session_settings: tuple[str, ...] = DEFAULT_SESSION_SETTINGS
    redis_queue: str | None = None

    def policy(self, stage: str | None) -> StagePolicy:
        """Return the policy of ``stage``, or the default policy if it has none of its own."""
        return self.stages.get(stage or "", self.default_policy)

    def presence_alias(self, alias: str) -> str:
        """Return the alias under which the database ``alias`` is reached without a pooler."""
        routes = self.presence_database
        return routes.get(alias, alias) if isinstance(routes, Mapping) else routes or alias

    @cached_property
    def policies_json(self) -> str:
        """The policies as the JSON array that the SQL statements read."""
        rows = [self.default_policy, *self.stages.values()]
        return json.dumps([policy.as_row() for policy in rows])

    @cached_property
    def policy_by_stage_json(self) -> str:
        """What a claim needs of each policy, as the JSON object that the claim of one job reads."""
        rows = [policy.as_row() for policy in (self.default_policy, *self.stages.values())]
        return json.dumps({row["stage"]: {part: row[part] for part in _CLAIMS_BY} for row in rows})

    @cached_property
    def limited_stages(self) -> frozenset[str]:
        """The stages that have a ``max_running``."""
        return frozenset(s for s, policy in self.stages.items() if policy.max_running is not None)

    def limits_any_of(self, stages: Iterable[str] | None) -> bool:
        """Return whether one of ``stages`` (``None``: of all stages) or a queue has a
        ``max_running``.
        """
        limited = self.limited_stages
        is_stage = bool(limited) and (stages is None or not limited.isdisjoint(stages))
        return is_stage or bool(self.queues)

    @cached_property
    def limits_json(self) -> str:
        """Each ``max_running`` as the JSON array that the SQL statements read."""
        of_stages = [
            {"stage": stage, "max_running": self.stages[stage].max_running}
            for stage in sorted(self.limited_stages)
        ]
        of_queues = [{"queue": name, "max_running": n} for name, n in sorted(self.queues.items())]
        return json.dumps(of_stages + of_queues)

    @property
    def shortest_lease_sec(self) -> float:
        """The shortest lease that any stage can have."""
        return min(p.lease_sec for p in (self.default_policy, *self.stages.values()))

    @property
    def shortest_run_sec(self) -> float:
        """The shortest lease, ``max_runtime`` or ``stall_after`` that any stage has."""
        limits = [(p.max_runtime_sec, p.stall_after_sec) for p in self.stages.values()]
        given = [sec for both in limits for sec in both if sec is not None]
        return min([self.shortest_lease_sec, *given])

    @property
    def stages_that_stall(self) -> list[str]:
        """The stages that have a ``stall_after``."""
        return sorted(s for s, policy in self.stages.items() if policy.stall_after_sec is not None)


def _own(key: tuple[str]) -> tuple[str]:
    # Other programs share the environment, so there the name starts with the package's.
    return (f"JOBREAPER_{key[0]}",)


def _env_name(stage: str) -> str:
    return re.sub(r"\W", "_", stage).upper() + SLA_FACTOR_SUFFIX


def _read_backoff(reader: Reader) -> tuple[int, ...]:
    base = reader.value(BACKOFF_BASE, values.optional(values.milliseconds), None)
    longest = reader.value(BACKOFF_MAX, values.optional(values.milliseconds), None)
    if base is None:
        return policies.capped(policies.DEFAULT_BACKOFF_MS, longest or LONGEST_MS)
    return policies.exponential_backoff(base, longest or max(base, DEFAULT_BACKOFF_MAX_MS))


def _read_stage(
    reader: Reader, stage: str, given: Mapping[str, Any], inherited: StagePolicy
) -> StagePolicy:
    changes: dict[str, Any] = {}
    for key, raw in given.items():
        where = f"JOBREAPER['{STAGES}'][{stage!r}]"
        if key not in values.STAGE_PARSERS:
            reader.unknown(where, key, values.STAGE_PARSERS)
            continue
        attribute, parse = values.STAGE_PARSERS[key]
        try:
            changes[attribute] = parse(raw)
        except ValueError as error:
            reader.bad_value(f"{where}[{key!r}]", raw, error)
    return replace(inherited, stage=stage, **changes)


def _read_stages(reader: Reader, default_policy: StagePolicy) -> dict[str, StagePolicy]:
    given = reader.mapping(STAGES)
    names = {stage: _env_name(stage) for stage in DEFAULT_SLA_FACTORS}
    for stage in given:
        try:
            values.name(stage)
        except ValueError as error:
            reader.bad_value(f"a stage in JOBREAPER['{STAGES}']", stage, error)
        else:
            names[stage] = _env_name(stage)
    # A stage such as "burn-in" is BURN_IN in the environment; the spelling in STAGES wins.
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


def _read_retention(reader: Reader) -> dict[str, float | None]:
    given = reader.mapping(RETENTION)
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


def _read_schedule(reader: Reader) -> dict[str, Timetable | None]:
    found: dict[str, Timetable | None] = {}
    for name, options in reader.mapping(SCHEDULE).items():
        where = f"JOBREAPER['{SCHEDULE}'][{name!r}]"
        if options is not None and not isinstance(options, Mapping):
            reader.bad_value(where, options, "it must be a dict, or None")
            continue
        try:
            found[name] = (
                None
                if options is None
                else timetable.timetable(name, options, timezone=django_settings.TIME_ZONE)
            )
        except ValueError as error:
            reader.bad_value(where, options, error)
    return found


def _read_queues(reader: Reader) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, options in reader.mapping(QUEUES).items():
        try:
            values.short_name(name)
            found[name] = values.only_max_running(options)
        except ValueError as error:
            reader.bad_value(f"JOBREAPER['{QUEUES}'][{name!r}]", options, error)
    return found


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
        # Its value may contain the token.
        found = f"JOBREAPER is of type {type(given).__name__}."
        problem = Problem("E002", found, "JOBREAPER must be a dict.")
        return Settings(), [problem]
    reader = Reader(given, environment)
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
        presence_grace_sec=reader.value(
            PRESENCE_GRACE, values.parse_duration, DEFAULT_PRESENCE_GRACE_SEC
        ),
        presence_database=reader.value(
            PRESENCE_DATABASE,
            values.optional(values.routes),
            None,
            variables=_own(PRESENCE_DATABASE),
        ),
        dispatch_interval_sec=reader.value(
            DISPATCH_INTERVAL, values.positive_duration, DEFAULT_DISPATCH_INTERVAL_SEC
        ),
        dispatch_again_sec=reader.value(
            DISPATCH_AGAIN, values.positive_duration, DEFAULT_DISPATCH_AGAIN_SEC
        ),
        default_policy=default_policy,
        stages=MappingProxyType(_read_stages(reader, default_policy)),
        retention_sec=MappingProxyType(_read_retention(reader)),
        schedule=MappingProxyType(_read_schedule(reader)),
        queues=MappingProxyType(_read_queues(reader)),
        tick_token=reader.value(
            TICK_TOKEN, values.token, None, variables=_own(TICK_TOKEN), is_secret=True
        ),
        notify=reader.value(NOTIFY, values.switch, True, variables=_own(NOTIFY)),
        session_settings=DEFAULT_SESSION_SETTINGS
        + reader.value(SESSION_SETTINGS, values.names, values.NO_NAMES),
        redis_queue=reader.value(
            REDIS_QUEUE, values.optional(values.path), None, variables=_own(REDIS_QUEUE)
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
