"""What `register()` and its checks say of a table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import models

import jobreaper
from jobreaper import table_checks
from jobreaper.exceptions import ConfigurationError
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables import errands
from tests.tables.chores import COMMON, model, reaped
from tests.tables.conftest import Adopt, Create

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"lease_expire_at": "x"}}, "'lease_expire_at' is no part of the protocol"),
        ({"columns": {"stage": "no_such"}}, "no field or column 'no_such'"),
        ({"words": {"running": "x"}}, "'running' is no status"),
        (
            {"words": {"processing": []}},
            r"words for 'processing' is \[\]: there must be one at least",
        ),
        (
            {"words": {"cancelled": None}},
            "words for 'cancelled' is None: it must be text or a whole",
        ),
        ({"words": {"queued": [True]}}, r"words for 'queued' is \[True\]: it must be text"),
        ({"words": "queued"}, "words is 'queued': it must be a dict"),
        ({"words": {"processing": ["a", "failed"]}}, "'failed' means both processing and failed"),
        ({"words": {"success": "done", "queued": "done"}}, "'done' means both queued and success"),
        ({"words": {"queued": "a", "processing": "a"}}, "'a' means both queued and processing"),
        ({"columns": {"stage": "status"}}, "'status' plays several parts: status, stage"),
        (
            {"functions": {"reclaim": "x"}},
            "'reclaim' is no function or view .there are claim, heart",
        ),
        ({"functions": {"reap": 1}}, "functions for 'reap' is 1: it must be text"),
        ({"functions": {"reap": "a\x00b"}}, "functions for 'reap' is .*: it must have neither NUL"),
        ({"words": {"queued": "a\ud800"}}, "words for 'queued' is .*: it must have neither NUL"),
        ({"ttl": {"a\x00b": 1}}, "a stage in ttl is .*: it must have neither NUL"),
        ({"note": "a\x00b"}, "note is .*: it must have neither NUL"),
        ({"functions": {"reap": "x", "claim": "x"}}, "has the name 'x' more than once"),
        (
            {"functions": {"stale_monitor": "chores_reclaim_history"}},
            "'chores_reclaim_history' more",
        ),
        ({"ttl": {None: 1}}, "a stage in ttl is None: it must be text or a whole number"),
        ({"ttl": {"a": 1}}, "there is no stage column"),
        ({"ttl": -1}, "ttl is -1: it must not be negative"),
        ({"attempts_counted": "never"}, "attempts_counted is 'never'"),
        ({"on_expiry": "explode"}, "on_expiry is 'explode': it must be one of requeue, fail"),
    ],
)
def test_what_is_wrong_is_told_at_once(options: dict[str, Any], message: str) -> None:
    chore = model(id=models.IntegerField(primary_key=True))
    with pytest.raises(ConfigurationError, match=message) as raised:
        jobreaper.register(chore, **options)
    assert chore._meta.label in str(raised.value)


def test_two_tables_have_no_function_of_one_name(adopt: Adopt) -> None:
    adopt(model(), functions={"reap": "tidy_up"})
    with pytest.raises(ConfigurationError, match="'tidy_up', which is that of chores's reap"):
        adopt(model("errands"), functions={"reap": "tidy_up"})
    adopt(model('office"."errands'), functions={"reap": "tidy_up"})


def test_ends_may_share_a_word_where_no_verb_tells_them_apart(create: Create, adopt: Adopt) -> None:
    adopt(model(), words=dict.fromkeys(("success", "failed", "cancelled"), "done"))
    with pytest.raises(ConfigurationError, match="'completed' means both success and failed"):
        adopt(
            errands.Errand, columns=errands.COLUMNS, words=errands.WORDS | {"failed": "completed"}
        )
    adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS | {"failed": "canceled"})


def messages(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    return [f"{m.id} {m.msg}" for m in table_checks.check_adopted_tables(None)]


def test_the_check_names_each_missing_part_and_its_cost(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = adopt(model(id=models.IntegerField(primary_key=True)), ttl=60)
    [message] = messages(table, monkeypatch)
    assert message.startswith("jobreaper.W011 Job table 'chores' has no column for")
    assert "- last_heartbeat_at: a healthy job that takes longer than its ttl is" in message
    assert "- lease_epoch: no leases" in message
    assert {line.split(":")[0][2:] for line in message.splitlines()[1:]} == set(table.missing)


@pytest.mark.parametrize("reclaim_only", [False, True])
def test_the_hint_proposes_what_was_not_said_yet(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch, reclaim_only: bool
) -> None:
    table = adopt(
        model(id=models.IntegerField(primary_key=True)), ttl=60, reclaim_only=reclaim_only
    )
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    [message] = table_checks.check_adopted_tables(None)
    assert ("reclaim_only=True" in str(message.hint)) is not reclaim_only


def test_the_check_is_content_with_a_complete_table(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    assert messages(table, monkeypatch) == []


@pytest.mark.parametrize(
    ("fields", "options", "problem"),
    [
        ({}, {}, "neither leases nor a ttl"),
        ({"claimed_at": None}, {"ttl": 60}, "no column for claimed_at or last_heartbeat_at"),
        ({"claimed_at": models.DateTimeField()}, {"ttl": 60}, "'claimed_at' .* may not be NULL"),
    ],
)
def test_the_check_refuses_a_table_that_cannot_be_reaped(
    adopt: Adopt,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    options: dict[str, Any],
    problem: str,
) -> None:
    chore = model(id=models.IntegerField(primary_key=True), **fields)
    found = messages(adopt(chore, reclaim_only=True, **options), monkeypatch)
    errors = [message for message in found if message.startswith("jobreaper.E005")]
    assert len(errors) == 1
    assert re.search(problem, errors[0])


def test_a_lost_job_that_fails_for_good_needs_neither_a_null_end_nor_a_count(
    create: Create, adopt: Adopt, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(
        f"CREATE TABLE chores (id int, {COMMON},"
        " finished_at timestamptz NOT NULL DEFAULT '1970-01-01')",
        "TABLE chores",
    )
    chore = model(finished_at=models.DateTimeField())
    requeued = messages(adopt(chore, ttl=60, reclaim_only=True), monkeypatch)
    assert ["E005" in message for message in requeued] == [True, False]
    assert "- attempt_count: " in requeued[1]
    table = adopt(chore, ttl=60, reclaim_only=True, on_expiry="fail")
    [warning] = messages(table, monkeypatch)
    assert "attempt_count" not in warning
    monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
    found = table_checks.check_tables_in_the_database(None, databases=["default"])
    assert [m for m in found if m.id == "jobreaper.E005"] == []
    sql("INSERT INTO chores VALUES (1)")
    assert reaped(table) == {1: "failed"}
    assert sql("SELECT finished_at > '2020-01-01' AS ended FROM chores") == [{"ended": True}]


def test_a_field_that_means_something_else_plays_no_part(
    create: Create, adopt: Adopt, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(
        f"CREATE TABLE chores (id int, fail_code int, finished_at date NOT NULL, {COMMON})",
        "TABLE chores",
    )
    chore = model(fail_code=models.IntegerField(), finished_at=models.DateField())
    told = messages(adopt(chore, ttl=60, reclaim_only=True), monkeypatch)
    assert any("say columns={'finished_at': None}" in hint for hint in hints(monkeypatch))
    assert [message.split(":")[0] for message in told if "E005" in message] == [
        "jobreaper.E005 Job table 'chores' cannot be reaped"
    ] * 2
    table = adopt(
        chore, columns={"fail_code": None, "finished_at": None}, ttl=60, reclaim_only=True
    )
    assert not [message for message in messages(table, monkeypatch) if "E005" in message]
    sql("INSERT INTO chores VALUES (1, 404, '2031-01-01')")
    assert reaped(table) == {1: "requeued"}
    assert sql("SELECT fail_code, finished_at::text FROM chores") == [
        {"fail_code": 404, "finished_at": "2031-01-01"}
    ]


def hints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return [str(message.hint) for message in table_checks.check_adopted_tables(None)]


class Step(models.IntegerChoices):
    WAITS = 1
    RUNS = 2
    ENDS = 9


GROUPED = {"Open": {"new": "New", "busy": "Busy"}, "bad": "Bad"}


@pytest.mark.parametrize(
    ("status", "words", "ids"),
    [
        (
            models.TextField(choices=GROUPED),
            {"queued": "new", "processing": "busy", "failed": "bad"},
            [],
        ),
        (
            models.TextField(choices=GROUPED),
            {"queued": "new", "processing": ["busy", "bussy"], "failed": "bad"},
            ["W016"],
        ),
        (
            models.TextField(choices=GROUPED),
            {"queued": "new", "processing": "Busy"},
            ["E005", "W016"],
        ),
        (
            models.SmallIntegerField(choices=Step),
            {"queued": Step.WAITS, "processing": 2, "failed": "9"},
            [],
        ),
        (
            models.SmallIntegerField(choices=Step),
            {"queued": Step.WAITS, "processing": 3, "failed": 9},
            ["E005", "W016"],
        ),
        (models.TextField(), {"processing": "anything"}, []),
    ],
)
def test_a_word_that_is_none_of_the_choices_is_told(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch, status: Any, words: Any, ids: list[str]
) -> None:
    table = adopt(model(status=status), words=words, ttl=60, reclaim_only=True)
    found = [message[10:14] for message in messages(table, monkeypatch)]
    assert [each for each in found if each != "W011"] == ids


def test_every_word_of_a_table_with_leases_is_to_be_among_the_choices(
    adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = ["waiting", "running", "finishing", "completed", "failed"]
    field = errands.Errand._meta.get_field("state")
    monkeypatch.setattr(field, "choices", [(each, each) for each in choices])
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    [message] = messages(table, monkeypatch)
    assert message == (
        "jobreaper.W016 Job table 'office.Errands' has words that are not among the choices of "
        "its status: 'canceled' for cancelled."
    )
