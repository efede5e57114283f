"""`manage.py reap` in this process: what each option does and what is printed."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from jobreaper import conf
from jobreaper.models import ReaperPass
from jobreaper.states import EventType, Status, Trigger
from jobreaper.tables import job_tables
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")

KEYS = {
    "tables",
    "requeued",
    "failed",
    "refused",
    "refused_rows",
    "held",
    "held_reason",
    "dry_run",
    "errors",
    "duration_ms",
}


def reap(*options: str) -> str:
    out = io.StringIO()
    call_command("reap", *options, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def reap_json(*options: str) -> dict[str, Any]:
    line = reap("--format", "json", *options)
    assert line.count("\n") == 1
    result: dict[str, Any] = json.loads(line)
    assert set(result) == KEYS
    return result


def test_a_pass_as_json_names_the_jobs_of_every_table(jobs: Rows, asr_jobs: Rows) -> None:
    requeued, failed = jobs.plant_expired(), jobs.plant_expired(attempt_count=3)
    live, asr = jobs.plant_running(), asr_jobs.plant_expired()
    result = reap_json()
    assert set(result["tables"]) == {table.name for table in job_tables()}
    assert result["tables"]["jobs"] == {"requeued": [requeued], "failed": [failed]}
    assert result["tables"]["asr_jobs"] == {"requeued": [asr], "failed": []}
    assert (result["requeued"], result["failed"], result["held"]) == (2, 1, False)
    assert (result["held_reason"], result["dry_run"], result["errors"]) == (None, False, [])
    assert result["duration_ms"] > 0
    assert jobs.row(live)["status"] == Status.PROCESSING


def test_ids_that_json_has_no_type_for_are_text(sql: Any) -> None:
    ready_made = Rows(sql, "jobreaper_jobs")
    key = ready_made.plant_expired()
    assert reap_json()["tables"]["jobreaper_jobs"]["requeued"] == [str(key)]


def test_a_pass_with_nothing_to_do_says_so(jobs: Rows) -> None:
    jobs.plant_running()
    assert "nothing to reap in" in reap()
    result = reap_json()
    assert (result["requeued"], result["failed"]) == (0, 0)


def test_a_pass_as_text_counts_what_it_did(jobs: Rows) -> None:
    jobs.plant_expired()
    jobs.plant_expired(attempt_count=3)
    lines = reap().splitlines()
    assert lines[0] == "jobs: 1 requeued, 1 failed"
    assert lines[1].startswith("took ")


def test_a_pass_is_on_record_as_the_commands(jobs: Rows) -> None:
    jobs.plant_expired()
    reap()
    [record] = ReaperPass.objects.all()
    assert (record.trigger, record.requeued, record.failed) == (Trigger.COMMAND, 1, 0)
    assert record.counts["jobs"] == {"requeued": 1, "failed": 0}


def test_only_the_tables_that_are_named_are_reaped(jobs: Rows, asr_jobs: Rows) -> None:
    jobs.plant_expired()
    asr = asr_jobs.plant_expired()
    assert reap_json("--table", "asr_jobs")["tables"] == {
        "asr_jobs": {"requeued": [asr], "failed": []}
    }
    result = reap_json("--table", "asr_jobs", "--table", "jobs")
    assert list(result["tables"]) == ["asr_jobs", "jobs"]
    assert result["requeued"] == 1


def test_a_dry_run_gives_the_verdicts_and_changes_nothing(jobs: Rows, sql: Any) -> None:
    requeued, failed = jobs.plant_expired(), jobs.plant_expired(attempt_count=3)
    before = jobs.all()
    result = reap_json("--dry-run")
    assert result["dry_run"] is True
    assert result["tables"]["jobs"] == {"requeued": [requeued], "failed": [failed]}
    assert "jobs: 1 would be requeued, 1 would be failed" in reap("--dry-run")

    assert jobs.all() == before
    assert not ReaperPass.objects.exists()
    assert sql("SELECT count(*) FROM job_events") == [{"count": 0}]
    real = reap_json()
    assert real["tables"] == result["tables"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_pass_takes_as_many_batches_as_it_needs(size: int, jobs: Rows) -> None:
    keys = [jobs.plant_expired() for _ in range(7)]
    result = reap_json("--batch-size", str(size))
    assert sorted(result["tables"]["jobs"]["requeued"]) == keys
    for key in keys:
        assert [event["type"] for event in jobs.events(key)] == [EventType.REAPER_REQUEUED]


@pytest.mark.usefixtures("server_started_after_a_pass")
def test_a_held_pass_says_so_and_no_hold_overrides_it(
    jobs: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = jobs.plant_expired()
    monkeypatch.setenv("RECOVERY_GRACE_SEC", "365d")
    conf.reset()
    try:
        held = reap_json()
        assert held["held"] is True
        assert "RECOVERY_GRACE_SEC" in held["held_reason"]
        assert held["requeued"] == 0
        assert reap().startswith("held: ")
        assert jobs.row(key)["status"] == Status.PROCESSING
        assert ReaperPass.objects.filter(held=True).count() == 2

        assert reap_json("--no-hold")["tables"]["jobs"]["requeued"] == [key]
    finally:
        monkeypatch.undo()
        conf.reset()


def test_an_unknown_table_is_bad_usage_and_the_known_ones_are_named() -> None:
    with pytest.raises(CommandError) as refused:
        reap("--table", "jbos")
    assert refused.value.returncode == 2
    for known in ("jbos", "jobs", "asr_jobs", "jobreaper_jobs"):
        assert known in str(refused.value)


def test_a_database_that_never_commits_is_refused_before_anything_is_written(jobs: Rows) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    connections.settings["manual"] = {**connections["default"].settings_dict, "AUTOCOMMIT": False}
    try:
        with pytest.raises(CommandError, match="has AUTOCOMMIT off") as refused:
            reap("--database", "manual")
    finally:
        del connections["manual"]
        del connections.settings["manual"]
    assert refused.value.returncode == 2
    assert jobs.row(key) == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--batch-size 0", "it must be at least 1"),
        ("--batch-size many", "'many' is no whole number"),
        ("--format xml", "invalid choice: 'xml'"),
        ("--once --loop", "not allowed with argument --once"),
        ("--database elsewhere", "invalid choice: 'elsewhere'"),
    ],
)
def test_bad_options_are_refused(options: str, why: str) -> None:
    with pytest.raises(CommandError, match=why):
        reap(*options.split())


def test_the_command_without_options_is_one_pass(jobs: Rows) -> None:
    assert reap_json("--once").keys() == reap_json().keys()
    assert ReaperPass.objects.count() == 2


def test_a_table_that_could_not_be_reaped_is_not_said_to_be_clean(sql: Any, capsys: Any) -> None:
    sql("ALTER TABLE asr_jobs RENAME TO asr_jobs_away")
    try:
        with pytest.raises(CommandError):
            call_command("reap")
        with pytest.raises(CommandError):
            call_command("reap", tables=["asr_jobs"])
    finally:
        sql("ALTER TABLE asr_jobs_away RENAME TO asr_jobs")
    [line] = [line for line in capsys.readouterr().out.splitlines() if "nothing to reap" in line]
    assert "jobs" in line
    assert "asr_jobs" not in line


def test_an_error_in_a_pass_is_an_error_of_the_command(jobs: Rows, sql: Any) -> None:
    jobs.plant_expired()
    sql("ALTER TABLE asr_jobs RENAME TO asr_jobs_away")
    try:
        with pytest.raises(CommandError) as failed:
            reap()
    finally:
        sql("ALTER TABLE asr_jobs_away RENAME TO asr_jobs")
    assert failed.value.returncode == 1
    assert "asr_jobs" in str(failed.value)
    [record] = ReaperPass.objects.all()
    assert "asr_jobs" in (record.error or "")
    assert record.requeued == 1
