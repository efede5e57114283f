"""What `manage.py check` finds in other people's tables, before each pass over them fails."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.db import models

import jobreaper
from jobreaper import table_checks
from jobreaper.admin import LeasedJobAdmin
from jobreaper.base import LeasedJob
from jobreaper.tables.jobtable import JobTable
from tests.rows import Sql
from tests.tables import errands
from tests.tables.chores import COMMON, model
from tests.tables.conftest import Adopt, Create

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the checks say of a table, with and without a look into the database."""

    def run(table: JobTable) -> list[str]:
        monkeypatch.setattr(table_checks, "job_tables", lambda: [table])
        found = table_checks.check_adopted_tables(None)
        found += table_checks.check_tables_in_the_database(None, databases=["default"])
        return [f"{message.id} {message.msg}" for message in found]

    return run


STATES = "CREATE TYPE chore_state AS ENUM ('queued', 'running', 'failed');"
SMALL = "status smallint NOT NULL DEFAULT 2, claimed_at timestamptz DEFAULT '2020-01-01'"
ENUM = COMMON.replace("text NOT NULL DEFAULT 'processing'", "chore_state DEFAULT 'running'")


@pytest.mark.parametrize(
    ("columns", "words", "refused"),
    [
        (ENUM, {"processing": "running"}, None),
        (
            ENUM,
            {"processing": ["running", "runs"]},
            "chore_state and cannot be 'runs' for processing",
        ),
        (ENUM, {"processing": "running", "failed": "dead"}, "cannot be 'dead' for failed"),
        (SMALL, {"queued": 1, "processing": 2, "failed": 3}, None),
        (SMALL, {"queued": 1, "processing": 2}, "is smallint and cannot be 'failed' for failed"),
        (COMMON.replace("text", "varchar(10)", 1), {}, None),
        (COMMON.replace("text", "varchar(10)", 1), {"failed": "f" * 11}, "cannot be 'fffffffffff'"),
    ],
)
def test_words_that_the_column_does_not_take(
    create: Create, adopt: Adopt, sql: Sql, told: Any, columns: str, words: Any, refused: str | None
) -> None:
    create(f"{STATES} CREATE TABLE chores (id int, {columns})", "TYPE chore_state", "TABLE chores")
    table = adopt(model(), ttl=60, reclaim_only=True, words=words, max_attempts=1)
    found = [message for message in told(table) if "E005" in message]
    sql("INSERT INTO chores VALUES (1)")
    errors = jobreaper.reap([table.model]).all_errors
    if refused is None:
        assert (found, errors) == ([], [])
    else:
        [message] = found
        assert refused in message
        assert errors


def test_the_words_of_a_table_with_leases_are_all_written(
    create: Create, adopt: Adopt, told: Any
) -> None:
    create(errands.DEFINITION, "SCHEMA office")
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    assert told(table) == []
    table = adopt(
        errands.Errand, columns=errands.COLUMNS, words={**errands.WORDS, "success": "good"}
    )
    [message] = told(table)
    assert "its status is office.state and cannot be 'good' for success" in message


def test_a_domain_of_an_enum_is_refused_and_one_of_text_is_not(
    create: Create, adopt: Adopt, sql: Sql, told: Any
) -> None:
    create(f"{STATES} CREATE DOMAIN dst AS chore_state", "TYPE chore_state", "DOMAIN dst")
    create(
        f"CREATE DOMAIN word AS text; CREATE TABLE chores (id int, {COMMON})",
        "DOMAIN word",
        "TABLE chores",
    )
    sql("ALTER TABLE chores ALTER status TYPE word")
    table = adopt(model(), ttl=60, reclaim_only=True, words={"processing": "running"})
    assert told(table) == [told(table)[0]]
    assert "W011" in told(table)[0]
    sql("ALTER TABLE chores ALTER status DROP DEFAULT, ALTER status TYPE dst USING 'running'::dst")
    assert "cannot be reaped: the status is of the domain dst, and" in told(table)[-1]
    [error] = jobreaper.reap([table.model]).all_errors
    assert "operator does not exist" in error


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"locked_by": models.IntegerField()}, "'locked_by' .* is no text and may not be NULL"),
        ({"locked_by": models.UUIDField()}, "'locked_by' .* is no text and may not be NULL"),
        ({"locked_by": models.UUIDField(null=True)}, None),
        ({"locked_by": models.CharField(max_length=9)}, None),
        ({"fail_reason": models.JSONField(null=True)}, "'fail_reason' .* is no text"),
        ({"fail_code": models.IntegerField(null=True)}, "'fail_code' .* is no text"),
    ],
)
def test_columns_that_take_no_text(
    adopt: Adopt, told: Any, fields: dict[str, Any], problem: str | None
) -> None:
    found = [message for message in told(adopt(model(**fields), ttl=60)) if "E005" in message]
    assert len(found) == (problem is not None)
    assert problem is None or re.search(problem, found[0])


def test_a_column_that_the_database_keeps_from_being_null(
    create: Create, adopt: Adopt, sql: Sql, told: Any
) -> None:
    create(f"CREATE TABLE chores (id int, locked_by text, {COMMON})", "TABLE chores")
    table = adopt(model(locked_by=models.TextField(null=True)), ttl=60, reclaim_only=True)
    assert [message for message in told(table) if "E005" in message] == []
    sql("ALTER TABLE chores ALTER locked_by SET NOT NULL, ALTER claimed_at SET NOT NULL")
    assert [message.split("reaped: ")[1] for message in told(table) if "E005" in message] == [
        f"the column {name!r} ({name}) may not be NULL, and the model says that it may."
        for name in ("claimed_at", "locked_by")
    ]


def test_columns_that_are_too_short(
    create: Create, adopt: Adopt, sql: Sql, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(errands.DEFINITION, "SCHEMA office")
    table = adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    sql(
        'ALTER TABLE office."Errands" ALTER worker TYPE varchar(80),'
        " ALTER error_code TYPE varchar(5), ALTER error_text TYPE varchar(9)"
    )
    [message] = told(table)
    assert message == (
        "jobreaper.W015 Job table 'office.Errands' may have no room for what is written to worker"
        " (locked_by, 80 characters), error_code (fail_code, 5 characters), error_text"
        " (fail_reason, 9 characters)."
    )
    monkeypatch.setattr(errands.Errand._meta.get_field("error_text"), "max_length", 9)
    monkeypatch.setattr(errands.Errand._meta.get_field("error_code"), "max_length", 5)
    sql('ALTER TABLE office."Errands" ALTER worker TYPE varchar(81)')
    assert told(table) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (None, None),
        ({"failed": "dead"}, "has words of its own for the status"),
    ],
)
def test_the_admin_of_leased_jobs_is_refused_where_it_cannot_show_them(
    adopt: Adopt, words: Any, problem: str | None
) -> None:
    fields: dict[str, Any] = {f.name: f.clone() for f in LeasedJob._meta.local_fields}
    table = adopt(model(**fields), words=words)
    found = LeasedJobAdmin(table.model, AdminSite()).check()
    assert [(f.id, f.msg) for f in found] == (
        []
        if problem is None
        else [
            (
                "jobreaper.E008",
                f"{table.model._meta.label} {problem}, so LeasedJobAdmin cannot show it.",
            )
        ]
    )


def test_the_admin_of_leased_jobs_is_refused_for_other_fields(adopt: Adopt) -> None:
    adopt(errands.Errand, columns=errands.COLUMNS, words=errands.WORDS)
    [error] = LeasedJobAdmin(errands.Errand, AdminSite()).check()
    assert error.id == "jobreaper.E008"
    assert error.msg.startswith("office.Errand has no field status, stage, locked_by, claimed_at,")


def test_a_leased_jobs_key_has_one_column(adopt: Adopt, told: Any) -> None:
    fields: dict[str, Any] = {
        "pk": models.CompositePrimaryKey("org", "name"),
        "org": models.IntegerField(),
        "name": models.TextField(),
        "Meta": type("Meta", (), {"app_label": "chores"}),
        "__module__": __name__,
    }
    composite = type("Composite", (LeasedJob,), fields)
    found = told(adopt(composite, ttl=60))
    assert "E005" in found[0]
    assert "its key is composite, and jobs with leases have a key of one column" in found[0]
