"""Who may install functions and views, and names that are in the way of their text."""

import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.state import ProjectState
from django.test import override_settings

from jobreaper.operations import InstallSQL
from jobreaper.schema import functions, migrating
from jobreaper.schema.objects import NotAllowed
from jobreaper.tables import table_of
from project.media.models import Job
from tests.rows import Rows, Sql

pytestmark = pytest.mark.usefixtures("transactional_db")

OTHER_POLICIES = override_settings(JOBREAPER={"STAGES": {"clip": {"lease": "11m"}}})


@pytest.fixture
def as_stranger(role: str, sql: Sql) -> Iterator[str]:
    """The session of a role that owns nothing, and may create what it likes in the schema."""
    sql(f"GRANT CREATE ON SCHEMA public TO {role}")
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
    yield role
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")


def test_it_is_said_who_may_replace_a_function(as_stranger: str) -> None:
    made = functions.of_table(table_of(Job), connection)[0]
    with pytest.raises(NotAllowed) as refused:
        made.create(connection)
    said = str(refused.value)
    assert '"public"."jobs_claim" cannot be created or replaced: must be owner of' in said
    assert "Run this as the role that owns it" in said
    assert "OWNER TO" in said


@OTHER_POLICIES
def test_a_migrate_by_another_role_goes_on_and_says_what_it_left(
    as_stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "jobreaper.schema"):
        migrating.render_package_anew(apps.get_app_config("jobreaper"), "default")
        migrating._waiting.add(("default", table_of(Job)))
        migrating.create_what_waited(apps.get_app_config("jobreaper"), "default")
    migrating._waiting.clear()
    told = [record.message.partition(" cannot")[0] for record in caplog.records]
    assert told == ['"public"."jobreaper_policies"', '"public"."jobs_claim"']
    drifts = [drift.name for drift in functions.drifted(connection, [table_of(Job)])]
    assert '"public"."jobreaper_policies"' in drifts


@OTHER_POLICIES
def test_a_migration_that_may_not_is_an_error_without_a_traceback(as_stranger: str) -> None:
    state = ProjectState.from_apps(apps)
    with connection.schema_editor() as editor, pytest.raises(CommandError, match="must be owner"):
        InstallSQL("Job").database_forwards("media", editor, state, state)
    with pytest.raises(CommandError, match="must be owner"):
        call_command("reaper_sql", install=True, stdout=StringIO())


@pytest.mark.parametrize("stage", ["$body$", "a $body$ b $body_$ c", "it's $1", "{clip}", "100 %"])
def test_a_stage_may_have_any_name(as_before: None, jobs: Rows, sql: Sql, stage: str) -> None:
    with override_settings(JOBREAPER={"STAGES": {stage: {"lease": "11m", "max_running": 1}}}):
        call_command("reaper_sql", install=True, tables=["jobs"], stdout=StringIO())
        mine = [drift.name for drift in functions.drifted(connection, [table_of(Job)])]
        assert [name for name in mine if name.startswith('"public"."jobs_')] == []
        jobs.plant(stage=stage)
        jobs.plant(stage=stage)
        taken: Any = sql("SELECT * FROM jobs_claim('w', 5)")
        assert [row["stage"] for row in taken] == [stage]
        left = (taken[0]["lease_expires_at"] - taken[0]["claimed_at"]).total_seconds()
        assert left == pytest.approx(660)
