"""Settings: what is given becomes one frozen object, or problems in words."""

import json
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest_django import Settings as DjangoSettings

from jobreaper import conf
from jobreaper.conf import Problem, Settings
from jobreaper.exceptions import ConfigurationError
from jobreaper.policies import StagePolicy
from jobreaper.states import OnExpiry

NOTHING: Mapping[str, str] = {}


def read(given: object, environment: Mapping[str, str] = NOTHING) -> Settings:
    settings, problems = conf.read(given, environment)
    assert problems == []
    return settings


def problem(given: object, environment: Mapping[str, str] = NOTHING) -> Problem:
    [found] = conf.read(given, environment)[1]
    return found


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


@pytest.mark.parametrize("name", ["STAGES", "RETENTION", "TICK_TOKEN"])
def test_only_the_documented_names_are_read_from_the_environment(name: str) -> None:
    assert read({}, {name: "anything"}) == read({})


def test_the_tick_token_carries_the_packages_name_in_the_environment() -> None:
    environment = {"JOBREAPER_TICK_TOKEN": "from the environment"}
    assert read({}, environment).tick_token == "from the environment"
    assert read({"TICK_TOKEN": "from the dict"}, environment).tick_token == "from the dict"


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


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"HEARTBEAT_SECS": 1}, "Did you mean 'HEARTBEAT_SEC'?"),
        ({"heartbeat_sec": 1}, "Did you mean 'HEARTBEAT_SEC'?"),
        ({"JOB_MAX_ATEMPTS": 1}, "Did you mean 'JOB_MAX_ATTEMPTS'?"),
        ({"CLIP_SLA_FACTR": 1}, "Did you mean 'CLIP_SLA_FACTOR'?"),
        ({"STAGE": {}}, "Did you mean 'STAGES'?"),
        ({"STAGES": {"asr": {"max_runtimes": 1}}}, "Did you mean 'max_runtime'?"),
        ({"STAGES": {"asr": {"on_expire": 1}}}, "Did you mean 'on_expiry'?"),
        ({"RETENTION": {"event": 1}}, "Did you mean 'events'?"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(given: object, hint: str) -> None:
    found = problem(given)
    assert (found.id, found.hint) == ("E001", hint)
    assert found.is_error


def test_a_key_near_no_other_is_answered_with_the_list() -> None:
    found = problem({"zzz": 1})
    assert "'zzz'" in found.message
    assert found.hint == f"Valid keys: {', '.join(conf.DICT_KEYS)}."


@pytest.mark.parametrize("key", [7, None, ("a",), b"HEARTBEAT_SEC"])
def test_a_key_that_is_no_text_is_an_unknown_key(key: object) -> None:
    assert problem({key: 1}).id == "E001"


BAD: list[tuple[Mapping[str, Any], str]] = [
    ({"REAPER_INTERVAL_SEC": 0}, "JOBREAPER['REAPER_INTERVAL_SEC']"),
    ({"REAPER_INTERVAL_SEC": None}, "JOBREAPER['REAPER_INTERVAL_SEC']"),
    ({"JOB_MAX_ATTEMPTS": 0}, "JOBREAPER['JOB_MAX_ATTEMPTS']"),
    ({"QUEUE_MAX_ATTEMPTS": "x"}, "JOBREAPER['QUEUE_MAX_ATTEMPTS']"),
    ({"DEFAULT_LEASE_SEC": -1}, "JOBREAPER['DEFAULT_LEASE_SEC']"),
    ({"HEARTBEAT_SEC": "often"}, "JOBREAPER['HEARTBEAT_SEC']"),
    ({"RECOVERY_GRACE_SEC": -1}, "JOBREAPER['RECOVERY_GRACE_SEC']"),
    ({"CLIP_SLA_FACTOR": -1}, "JOBREAPER['CLIP_SLA_FACTOR']"),
    ({"JOB_RETRY_BACKOFF_MS_BASE": 0}, "JOBREAPER['JOB_RETRY_BACKOFF_MS_BASE']"),
    ({"JOB_RETRY_BACKOFF_MS_MAX": "x"}, "JOBREAPER['JOB_RETRY_BACKOFF_MS_MAX']"),
    ({"STAGES": ["asr"]}, "JOBREAPER['STAGES']"),
    ({"STAGES": {"asr": "4h"}}, "JOBREAPER['STAGES']['asr']"),
    ({"STAGES": {"": {}}}, "a stage in JOBREAPER['STAGES']"),
    ({"STAGES": {5: {}}}, "a stage in JOBREAPER['STAGES']"),
    ({"STAGES": {"a\x00b": {}}}, "a stage in JOBREAPER['STAGES']"),
    ({"STAGES": {"a\ud800": {}}}, "a stage in JOBREAPER['STAGES']"),
    ({"a\ud800_SLA_FACTOR": 1}, "the name of a stage's factor"),
    ({"STAGES": {"asr": {"lease": 0}}}, "JOBREAPER['STAGES']['asr']['lease']"),
    ({"STAGES": {"asr": {"sla_factor": "x"}}}, "JOBREAPER['STAGES']['asr']['sla_factor']"),
    ({"STAGES": {"asr": {"max_runtime": 0}}}, "JOBREAPER['STAGES']['asr']['max_runtime']"),
    ({"STAGES": {"asr": {"backoff": []}}}, "JOBREAPER['STAGES']['asr']['backoff']"),
    ({"STAGES": {"asr": {"on_expiry": "x"}}}, "JOBREAPER['STAGES']['asr']['on_expiry']"),
    ({"STAGES": {"asr": {"max_reaps": 0}}}, "JOBREAPER['STAGES']['asr']['max_reaps']"),
    ({"STAGES": {"asr": {"ttl": 0}}}, "JOBREAPER['STAGES']['asr']['ttl']"),
    ({"STAGES": {"asr": {"max_running": 0}}}, "JOBREAPER['STAGES']['asr']['max_running']"),
    ({"STAGES": {"asr": {"queue": ""}}}, "JOBREAPER['STAGES']['asr']['queue']"),
    ({"STAGES": {"asr": {"queue": "a\x00b"}}}, "JOBREAPER['STAGES']['asr']['queue']"),
    ({"STAGES": {"asr": {"priority": "9"}}}, "JOBREAPER['STAGES']['asr']['priority']"),
    ({"RETENTION": 7}, "JOBREAPER['RETENTION']"),
    ({"RETENTION": {"success": "x"}}, "JOBREAPER['RETENTION']['success']"),
]


@pytest.mark.parametrize(("given", "where"), BAD, ids=[str(given) for given, _ in BAD])
def test_a_bad_value_is_an_error_that_says_where(given: Mapping[str, Any], where: str) -> None:
    found = problem(given)
    assert found.id == "E002"
    assert found.message.startswith(f"{where} has the bad value ")


@pytest.mark.parametrize("given", [None, [], "x", 5])
def test_settings_that_are_no_dict_are_an_error(given: object) -> None:
    found = problem(given)
    assert (found.id, found.hint) == ("E002", "JOBREAPER must be a dict.")


def test_a_bad_variable_is_called_by_its_name() -> None:
    found = problem({}, {"JOB_MAX_ATTEMPTS": "lots"})
    assert "environment variable JOB_MAX_ATTEMPTS has the bad value 'lots'" in found.message


@pytest.mark.parametrize(
    ("given", "environment", "where"),
    [
        ({}, {"JOBREAPER_TICK_TOKEN": "s3cret-é"}, "environment variable JOBREAPER_TICK_TOKEN"),
        ({"TICK_TOKEN": "s3cret-é"}, {}, "JOBREAPER['TICK_TOKEN']"),
        ({"TICK_TOKEN": b"s3cret"}, {}, "JOBREAPER['TICK_TOKEN']"),
    ],
)
def test_a_bad_secret_is_called_by_its_name_and_not_shown(
    given: Mapping[str, Any], environment: Mapping[str, str], where: str
) -> None:
    found = problem(given, environment)
    assert found.id == "E002"
    assert found.message.startswith(f"{where} has a bad value: it must be ")
    assert found.hint == f"Correct {where}."
    assert "s3cret" not in found.message


def test_settings_of_another_type_are_not_shown_since_a_secret_may_be_among_them() -> None:
    found = problem([("TICK_TOKEN", "s3cret")])
    assert found.message == "JOBREAPER is of type list."


def test_a_bad_value_is_not_papered_over_by_the_next_source() -> None:
    given, environment = {"JOB_MAX_ATTEMPTS": "lots"}, {"JOB_MAX_ATTEMPTS": "7"}
    settings, problems = conf.read(given, environment)
    assert len(problems) == 1
    assert settings.max_attempts == 3


def test_every_problem_is_reported_at_once() -> None:
    given = {"HEARTBEAT_SECS": 1, "JOB_MAX_ATTEMPTS": 0, "STAGES": {"asr": {"lease": "x"}}}
    assert sorted(p.id for p in conf.read(given, NOTHING)[1]) == ["E001", "E002", "E002"]


@pytest.mark.parametrize(
    ("heartbeat_sec", "ids"),
    [(20, []), (20.1, ["W001"]), (29.9, ["W001"]), (30, ["E003"]), (60, ["E003"])],
)
def test_beats_too_far_apart_for_the_lease_are_refused(
    heartbeat_sec: float, ids: list[str]
) -> None:
    given = {"DEFAULT_LEASE_SEC": 60, "HEARTBEAT_SEC": heartbeat_sec}
    assert [p.id for p in conf.read(given, NOTHING)[1]] == ids


def test_the_shortest_lease_of_any_stage_counts() -> None:
    found = problem({"STAGES": {"dub": {"lease": 40}}})
    assert found.id == "W001"
    assert not found.is_error
    assert found.hint.startswith("Set HEARTBEAT_SEC to 13.3333 or less")


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
    st.sampled_from(sorted(conf._STAGE_PARSERS)) | st.text(max_size=9), plausible, max_size=3
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
