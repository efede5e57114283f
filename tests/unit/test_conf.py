"""Settings: what is given becomes one frozen object."""

import json
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_django import Settings as DjangoSettings

from jobreaper import conf, values
from jobreaper.conf import Settings
from jobreaper.exceptions import ConfigurationError
from jobreaper.policies import StagePolicy
from jobreaper.states import OnExpiry

NOTHING: Mapping[str, str] = {}


def read(given: object, environment: Mapping[str, str] = NOTHING) -> Settings:
    settings, problems = conf.read(given, environment)
    assert problems == []
    return settings


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = read({})
    assert settings.reaper_interval_sec == 60
    assert settings.max_attempts == 3
    assert settings.heartbeat_sec == 15
    assert settings.recovery_grace_sec == 30
    assert settings.default_policy == StagePolicy(
        lease_sec=300, sla_factor=0, backoff_ms=(30_000, 120_000, 600_000)
    )
    assert {s: p.sla_factor for s, p in settings.stages.items()} == {
        "clip": 6,
        "asr": 12,
        "burnin": 8,
    }
    assert settings.tick_token is None


def first_backoff(settings: Settings) -> int:
    return settings.default_policy.backoff_ms[0]


def last_backoff(settings: Settings) -> int:
    return settings.default_policy.backoff_ms[-1]


# Names in the order of precedence, and what each of them changes.
NAMES: list[tuple[tuple[str, ...], Callable[[Settings], object]]] = [
    (("REAPER_INTERVAL_SEC",), lambda s: s.reaper_interval_sec),
    (("JOB_MAX_ATTEMPTS", "QUEUE_MAX_ATTEMPTS"), lambda s: s.max_attempts),
    (("DEFAULT_LEASE_SEC", "QUEUE_VISIBILITY_SEC"), lambda s: s.default_policy.lease_sec),
    (("HEARTBEAT_SEC",), lambda s: s.heartbeat_sec),
    (("RECOVERY_GRACE_SEC",), lambda s: s.recovery_grace_sec),
    (("JOB_RETRY_BACKOFF_MS_BASE", "QUEUE_RETRY_BACKOFF_MS_BASE"), first_backoff),
    (("JOB_RETRY_BACKOFF_MS_MAX", "QUEUE_RETRY_BACKOFF_MS_MAX"), last_backoff),
    (("CLIP_SLA_FACTOR",), lambda s: s.stages["clip"].sla_factor),
    (("ASR_SLA_FACTOR",), lambda s: s.stages["asr"].sla_factor),
    (("BURNIN_SLA_FACTOR",), lambda s: s.stages["burnin"].sla_factor),
    (("THUMBNAIL_SLA_FACTOR",), lambda s: s.stages["thumbnail"].sla_factor),
]


@pytest.mark.parametrize(("names", "value"), NAMES, ids=lambda v: v[0] if v is tuple else None)
def test_the_dict_wins_over_the_environment_and_newer_names_over_older_ones(
    names: tuple[str, ...], value: Callable[[Settings], object]
) -> None:
    # Each source gives another number; taken away one after the other, the next one shows.
    given = {name: 71 + n for n, name in enumerate(names)}
    environment = {name: str(81 + n) for n, name in enumerate(names)}
    order = [given[name] for name in names] + [int(environment[name]) for name in names]
    seen = []
    for source in (given, environment):
        for name in names:
            seen.append(value(read(given, environment)))
            del source[name]
    assert seen == order


@pytest.mark.parametrize("name", [name for names, _ in NAMES for name in names])
def test_an_empty_variable_is_one_that_is_not_set(name: str) -> None:
    settings = read({}, {name: "  "})
    expected = read({})
    for field in fields(Settings):
        if field.name != "stages":
            assert getattr(settings, field.name) == getattr(expected, field.name)
    assert settings.policy("clip") == expected.policy("clip")


@pytest.mark.parametrize("name", ["STAGES", "RETENTION", "TICK_TOKEN", "NOTIFY", "REDIS_QUEUE"])
def test_only_the_documented_names_are_read_from_the_environment(name: str) -> None:
    assert read({}, {name: "anything"}) == read({})


def test_the_tick_token_carries_the_packages_name_in_the_environment() -> None:
    environment = {"JOBREAPER_TICK_TOKEN": "from the environment"}
    assert read({}, environment).tick_token == "from the environment"
    assert read({"TICK_TOKEN": "from the dict"}, environment).tick_token == "from the dict"


@pytest.mark.parametrize(("word", "value"), [("0", False), ("Off", False), ("TRUE", True)])
def test_notifications_are_switched_by_a_word_in_the_environment(word: str, value: bool) -> None:
    assert read({}).notify is True
    assert read({}, {"JOBREAPER_NOTIFY": word}).notify is value
    assert read({"NOTIFY": not value}, {"JOBREAPER_NOTIFY": word}).notify is not value


def test_the_redis_queue_is_configured_by_the_path_of_a_file() -> None:
    assert read({}).redis_queue is None
    assert read({}, {"JOBREAPER_REDIS_QUEUE": "/etc/queue.yaml"}).redis_queue == "/etc/queue.yaml"
    assert read({"REDIS_QUEUE": Path("/a/b.yaml")}).redis_queue == "/a/b.yaml"
    with pytest.raises(AssertionError, match="path of a file"):
        read({"REDIS_QUEUE": 17})


def test_the_tick_token_stays_out_of_tracebacks() -> None:
    assert "s3cret" not in repr(read({"TICK_TOKEN": "s3cret"}))


def test_durations_may_be_text() -> None:
    settings = read({"REAPER_INTERVAL_SEC": "2m"}, {"DEFAULT_LEASE_SEC": "10m"})
    assert settings.reaper_interval_sec == 120
    assert settings.default_policy.lease_sec == 600


def test_heartbeats_may_be_fractions_of_a_second() -> None:
    assert read({}, {"HEARTBEAT_SEC": "0.25"}).heartbeat_sec == 0.25


def test_the_grace_is_two_beats_unless_it_is_given() -> None:
    assert read({"HEARTBEAT_SEC": 4}).recovery_grace_sec == 8
    assert read({"HEARTBEAT_SEC": 4, "RECOVERY_GRACE_SEC": 0}).recovery_grace_sec == 0


def test_a_base_and_a_maximum_make_the_backoff_exponential() -> None:
    given = {"JOB_RETRY_BACKOFF_MS_BASE": 1000, "JOB_RETRY_BACKOFF_MS_MAX": 5000}
    assert read(given).default_policy.backoff_ms == (1000, 2000, 4000, 5000)


def test_a_base_alone_doubles_up_to_ten_minutes() -> None:
    delays = read({"JOB_RETRY_BACKOFF_MS_BASE": 200_000}).default_policy.backoff_ms
    assert delays == (200_000, 400_000, 600_000)


def test_a_base_beyond_ten_minutes_stays_what_it_is() -> None:
    delays = read({"JOB_RETRY_BACKOFF_MS_BASE": "1h"}).default_policy.backoff_ms
    assert delays == (3_600_000,)


def test_a_maximum_alone_caps_the_default_backoff() -> None:
    delays = read({"JOB_RETRY_BACKOFF_MS_MAX": 60_000}).default_policy.backoff_ms
    assert delays == (30_000, 60_000, 60_000)


def test_a_stage_changes_what_it_names_and_inherits_the_rest() -> None:
    given = {
        "DEFAULT_LEASE_SEC": 100,
        "JOB_RETRY_BACKOFF_MS_BASE": 1000,
        "JOB_RETRY_BACKOFF_MS_MAX": 1000,
        "STAGES": {"asr": {"max_runtime": "4h"}},
    }
    assert read(given).policy("asr") == StagePolicy(
        stage="asr", lease_sec=100, sla_factor=12, backoff_ms=(1000,), max_runtime_sec=14_400
    )


def test_a_stage_may_set_every_rule() -> None:
    options = {
        "lease": "20m",
        "sla_factor": 2.5,
        "max_runtime": "4h",
        "backoff": ["1s", 2],
        "on_expiry": "fail",
        "max_reaps": 4,
        "ttl": "15m",
        "max_running": 7,
        "queue": "slow",
        "priority": 9,
    }
    assert read({"STAGES": {"dub": options}}).policy("dub") == StagePolicy(
        stage="dub",
        lease_sec=1200,
        sla_factor=2.5,
        max_runtime_sec=14_400,
        backoff_ms=(1000, 2000),
        on_expiry=OnExpiry.FAIL,
        max_reaps=4,
        ttl_sec=900,
        max_running=7,
        queue="slow",
        priority=9,
    )


def test_a_stages_own_factor_wins_over_its_key_and_its_variable() -> None:
    given = {"ASR_SLA_FACTOR": 2, "STAGES": {"asr": {"sla_factor": 3}}}
    assert read(given, {"ASR_SLA_FACTOR": "1"}).policy("asr").sla_factor == 3


def test_a_stage_with_a_hyphen_has_an_underscore_in_its_variable() -> None:
    given: dict[str, Any] = {"STAGES": {"burn-in": {}}}
    settings = read(given, {"BURN_IN_SLA_FACTOR": "5"})
    assert settings.policy("burn-in").sla_factor == 5
    assert "burn_in" not in settings.stages


@pytest.mark.parametrize(("one", "other"), [("burn-in", "burn_in"), ("clip", "Clip")])
def test_stages_that_share_a_variable_are_both_kept(one: str, other: str) -> None:
    given = {"STAGES": {one: {"lease": 500}, other: {"lease": 700}}}
    environment = {conf._env_name(one): "5"}
    settings = read(given, environment)
    assert settings.policy(one).lease_sec == 500
    assert settings.policy(other).lease_sec == 700
    assert settings.policy(one).sla_factor == settings.policy(other).sla_factor == 5


def test_a_stage_spelled_otherwise_does_not_take_a_default_stages_factor_away() -> None:
    assert read({"STAGES": {"Clip": {}}}).policy("clip").sla_factor == 6


@pytest.mark.parametrize("stage", [None, "", "unheard-of"])
def test_an_unknown_stage_has_the_default_policy(stage: str | None) -> None:
    settings = read({"DEFAULT_LEASE_SEC": 77})
    assert settings.policy(stage) is settings.default_policy


def test_the_statements_are_given_every_policy_the_default_one_first() -> None:
    rows = json.loads(read({"STAGES": {"dub": {"on_expiry": "fail"}}}).policies_json)
    assert [row["stage"] for row in rows] == ["", "clip", "asr", "burnin", "dub"]
    assert rows[-1]["on_expiry"] == "fail"


def test_retention_is_in_seconds_and_none_keeps_for_ever() -> None:
    ages = read({"RETENTION": {"success": "1d", "failed": None}}).retention_sec
    assert ages["success"] == 86_400
    assert ages["failed"] is None
    assert ages["events"] == 30 * 86_400
    assert ages["passes"] == 7 * 86_400


def test_wrong_settings_raise_with_every_problem(settings: DjangoSettings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SECS": 1, "JOB_MAX_ATTEMPTS": 0}
    with pytest.raises(ConfigurationError) as caught:
        conf.settings()
    assert "Did you mean 'HEARTBEAT_SEC'?" in str(caught.value)
    assert "JOB_MAX_ATTEMPTS" in str(caught.value)


def test_a_warning_does_not_stop_anything(settings: DjangoSettings) -> None:
    settings.JOBREAPER = {"DEFAULT_LEASE_SEC": 60, "HEARTBEAT_SEC": 25}
    assert [p.id for p in conf.problems()] == ["W001"]
    assert conf.settings().heartbeat_sec == 25


def test_settings_are_read_once_and_anew_when_they_change(settings: DjangoSettings) -> None:
    settings.JOBREAPER = {"JOB_MAX_ATTEMPTS": 5}
    first = conf.settings()
    assert conf.settings() is first
    settings.DEBUG = not settings.DEBUG
    assert conf.settings() is first
    settings.JOBREAPER = {"JOB_MAX_ATTEMPTS": 6}
    assert conf.settings().max_attempts == 6


def test_the_environment_is_read_when_settings_are_first_asked_for(
    settings: DjangoSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.JOBREAPER = {}
    monkeypatch.setenv("JOB_MAX_ATTEMPTS", "9")
    assert conf.settings().max_attempts == 9


def test_settings_are_frozen() -> None:
    settings = read({})
    with pytest.raises(FrozenInstanceError):
        settings.max_attempts = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.stages["clip"] = StagePolicy()  # type: ignore[index]


plausible = st.none() | st.booleans() | st.integers(-2, 10**7) | st.floats() | st.text(max_size=4)


keys = st.sampled_from([*conf.DICT_KEYS, "X_SLA_FACTOR"]) | st.text(max_size=9) | st.integers()


options = st.dictionaries(
    st.sampled_from(sorted(values.STAGE_PARSERS)) | st.text(max_size=9), plausible, max_size=3
)


@given(
    given=st.dictionaries(
        keys,
        plausible | st.dictionaries(st.text(max_size=4) | st.none(), options | plausible),
        max_size=5,
    ),
    environment=st.dictionaries(
        st.sampled_from([name for names, _ in NAMES for name in names]), st.text(max_size=6)
    ),
)
@example(given={"DEFAULT_LEASE_SEC": 10**400}, environment={})
def test_whatever_is_given_the_answer_is_settings_and_problems(
    given: Mapping[Any, Any], environment: Mapping[str, str]
) -> None:
    settings, problems = conf.read(given, environment)
    assert json.loads(settings.policies_json)
    assert "\x00" not in "".join(settings.stages)
    assert "".join(settings.stages).encode()
    assert all(p.message and p.hint for p in problems)
    # A value in the object is always one that passed.
    assert settings.max_attempts >= 1
    assert settings.default_policy.lease_sec > 0
