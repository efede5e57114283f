"""``manage.py reaper_doctor``: what is wrong with an installation, and what to do."""

import json
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils.timezone import now

import jobreaper
from jobreaper.doctor import database
from jobreaper.models import ReaperPass, RefusedRow, Worker
from jobreaper.states import Trigger
from project.media.models import Job
from tests.admin.conftest import execute

pytestmark = pytest.mark.django_db


def findings(*arguments: str) -> dict[str, list[dict[str, Any]]]:
    """The findings by what they are about, whatever the exit code."""
    out = StringIO()
    with suppress(CommandError):
        call_command("reaper_doctor", "--format", "json", *arguments, stdout=out)
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(out.getvalue()):
        found.setdefault(each["about"], []).append(each)
    return found


def levels(about: str) -> list[str]:
    return [each["level"] for each in findings()[about]]


@pytest.fixture
def well(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation with nothing to see to, apart from what this machine's server is set to."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW autovacuum")
        if cursor.fetchone() == ("off",):
            monkeypatch.delitem(database._LOOKS, "server")
    jobreaper.reap([Job], trigger=Trigger.WORK)


def test_an_installation_that_is_well_passes_a_probe(well: None) -> None:
    out = StringIO()
    call_command("reaper_doctor", stdout=out)
    assert "ok       default: passes: The last pass was" in out.getvalue()


def test_without_passes_it_says_what_to_install() -> None:
    found = findings()
    assert found["passes"][0]["level"] == "error"
    assert found["schedule"][0]["level"] == "error"
    assert "manage.py work" in found["schedule"][0]["remedy"]
    jobreaper.reap([Job], trigger=Trigger.ADMIN)
    assert (levels("passes"), levels("schedule")) == (["ok"], ["error"])
    jobreaper.reap([Job], trigger=Trigger.BEAT)
    assert levels("schedule") == ["ok"]


def test_a_held_pass_is_a_warning(well: None) -> None:
    ReaperPass.objects.create(reaper="r", held=True, held_reason="so it is")
    [found] = findings()["passes"]
    assert found["level"] == "warning"
    assert "so it is" in found["text"]


def test_an_index_that_is_missing_is_named(well: None) -> None:
    assert levels("indexes") == ["ok"]
    execute("DROP INDEX idx_jobs_queued_due")
    [found] = findings()["indexes"]
    assert found["level"] == "warning"
    assert "idx_jobs_queued_due" in found["text"]


def test_bad_settings_are_found_by_the_checks(well: None) -> None:
    with override_settings(JOBREAPER={"HEARTBEAT_SEC": 200, "DEFAULT_LEASE_SEC": "5m"}):
        found = findings()
    assert found["jobreaper.E003"][0]["level"] == "error"
    assert "ok" not in {each["level"] for each in found.get("checks", [])}


def test_functions_that_have_drifted_are_found(well: None) -> None:
    execute("DROP FUNCTION jobreaper_policies()")
    about = {each for each in findings() if each.startswith("jobreaper.W")}
    assert about


def test_clocks_that_differ_are_found() -> None:
    [near] = database._clocks(0.5, 0.1)
    [far] = database._clocks(-5, 0.1)
    [very_far] = database._clocks(90, 0.1)
    assert [each.level.value for each in (near, far, very_far)] == ["ok", "warning", "error"]
    assert "1 min 30 s" in very_far.text


def test_autovacuum_that_is_switched_off_for_a_table_is_found(well: None) -> None:
    # The statistics are the server's: dead rows of other tests may be named beside it.
    def switched_off() -> list[str]:
        found = [each for each in findings()["vacuum"] if "switched off for" in each["text"]]
        assert {each["level"] for each in found} <= {"warning"}
        return [each["text"] for each in found]

    assert switched_off() == []
    execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    [text] = switched_off()
    assert "jobs" in text


def test_an_old_transaction_is_found(
    transactional_db: None,
    second_connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "error" not in levels("transactions")
    second_connection.execute("SELECT 1 AS secret_7 WHERE 'topsecret' <> ''")
    monkeypatch.setattr(database, "OLD_TRANSACTION_SEC", 0)
    pid = str(second_connection.info.backend_pid)
    [found] = [each for each in findings()["transactions"] if pid in each["text"]]
    assert found["level"] == "warning"
    assert pid in found["remedy"]
    assert "topsecret" not in found["text"]


def test_workers_of_another_version_are_found(well: None) -> None:
    given = {"kind": "work", "host": "h", "pid": 1, "is_direct": False}
    Worker.objects.create(worker="h:1:a", version=jobreaper.__version__, **given)
    assert levels("workers") == ["ok"]
    Worker.objects.create(worker="h:2:a", version="0.0.1", **given)
    assert levels("workers") == ["warning", "ok"]


def test_rows_that_cannot_be_written_are_found(well: None) -> None:
    RefusedRow.objects.create(
        table="jobs", verb="reap", key="1", error="e", next_try_at=now() + timedelta(minutes=1)
    )
    assert levels("rows") == ["warning"]


def test_with_strict_a_warning_fails_a_probe_too(well: None) -> None:
    execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    call_command("reaper_doctor", stdout=StringIO())
    with pytest.raises(CommandError) as caught:
        call_command("reaper_doctor", "--strict", stdout=StringIO())
    assert caught.value.returncode == 1


def test_quiet_leaves_out_what_is_well(well: None) -> None:
    execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    assert all(each["level"] != "ok" for some in findings("--quiet").values() for each in some)


def test_a_database_that_refuses_an_answer_is_a_finding(well: None) -> None:
    execute("ALTER TABLE jobreaper_refused_rows RENAME TO elsewhere")
    assert levels("rows") == ["error"]
