"""System checks: stable ids, hints that help, a link to the page that explains them."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, models
from pytest_django import Settings

from jobreaper.db import connection_for
from jobreaper.exceptions import ConfigurationError, UnsupportedDatabase


def found() -> list[CheckMessage]:
    return run_checks(tags=["jobreaper"])


def test_good_settings_pass(settings: Settings) -> None:
    settings.JOBREAPER = {"STAGES": {"asr": {"max_runtime": "4h"}}}
    assert found() == []


@pytest.mark.parametrize(
    ("given", "id", "hint"),
    [
        ({"HEARTBEAT_SECS": 5}, "jobreaper.E001", "Did you mean 'HEARTBEAT_SEC'?"),
        ({"JOB_MAX_ATTEMPTS": 0}, "jobreaper.E002", "Correct JOBREAPER['JOB_MAX_ATTEMPTS']."),
        ({"HEARTBEAT_SEC": 150}, "jobreaper.E003", "Set HEARTBEAT_SEC to 100 or less"),
        ({"HEARTBEAT_SEC": 101}, "jobreaper.W001", "Set HEARTBEAT_SEC to 100 or less"),
    ],
)
def test_wrong_settings_are_reported(
    settings: Settings, given: dict[str, Any], id: str, hint: str
) -> None:
    settings.JOBREAPER = given
    [message] = found()
    assert message.id == id
    assert message.hint is not None
    assert message.hint.startswith(hint)
    assert message.hint.endswith(f" See docs/checks.md#{id.removeprefix('jobreaper.').lower()}")
    assert message.is_serious() == ("E" in id)


def test_manage_py_check_fails_on_an_error(settings: Settings) -> None:
    settings.JOBREAPER = {"HEARTBEAT_SECS": 5}
    with pytest.raises(SystemCheckError, match=r"jobreaper\.E001.*HEARTBEAT_SECS"):
        call_command("check")


class EverythingToSqlite:
    def db_for_write(self, model: type[models.Model], **hints: object) -> str:
        return "lite"

    db_for_read = db_for_write


@pytest.fixture
def lite(settings: Settings) -> Iterator[str]:
    """An alias for a database that cannot keep jobs."""
    entry = connections.settings["default"]
    connections.settings["lite"] = {
        **entry,
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    yield "lite"
    del connections["lite"]
    del connections.settings["lite"]


def test_a_job_table_outside_postgresql_is_an_error(settings: Settings, lite: str) -> None:
    settings.DATABASE_ROUTERS = [EverythingToSqlite()]
    messages = found()
    assert {message.id for message in messages} == {"jobreaper.E004"}
    assert messages[0].msg.endswith("is in the database 'lite', which is sqlite.")
    assert {m.obj._meta.db_table for m in messages} >= {"jobs", "asr_jobs", "jobreaper_jobs"}


def test_no_statement_is_sent_outside_postgresql(lite: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="'lite' is sqlite"):
        connection_for(lite)


@pytest.fixture
def never_commits() -> Iterator[str]:
    """An alias for the test database on which nothing is committed."""
    connections.settings["manual"] = {**connections.settings["default"], "AUTOCOMMIT": False}
    yield "manual"
    del connections["manual"]
    del connections.settings["manual"]


class EverythingToManual:
    def db_for_write(self, model: type[models.Model], **hints: object) -> str:
        return "manual"

    db_for_read = db_for_write


def test_a_database_out_of_autocommit_is_an_error(settings: Settings, never_commits: str) -> None:
    settings.DATABASE_ROUTERS = [EverythingToManual()]
    [message] = found()
    assert message.id == "jobreaper.E007"
    assert message.msg.startswith("DATABASES['manual'] holds job tables and has AUTOCOMMIT off")


def test_no_statement_is_sent_out_of_autocommit(never_commits: str) -> None:
    with pytest.raises(ConfigurationError, match=r"DATABASES\['manual'\] has AUTOCOMMIT off"):
        connection_for(never_commits)
