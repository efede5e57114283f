"""Settings: what is wrong with them, in words."""

from collections.abc import Mapping
from typing import Any

import pytest

from jobreaper import conf
from jobreaper.settings_reader import Problem

NOTHING: Mapping[str, str] = {}


def problem(given: object, environment: Mapping[str, str] = NOTHING) -> Problem:
    [found] = conf.read(given, environment)[1]
    return found


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
    ({"PRESENCE_DATABASE": 7}, "JOBREAPER['PRESENCE_DATABASE']"),
    ({"PRESENCE_DATABASE": {"default": ""}}, "JOBREAPER['PRESENCE_DATABASE']"),
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
