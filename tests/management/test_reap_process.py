"""`manage.py reap` as people, timers and scripts call it: exit codes, and what goes where."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.management.conftest import ROOT, Run
from tests.rows import Rows

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


def test_a_clean_pass_exits_with_0_and_prints_json_alone_on_stdout(jobs: Rows, run: Run) -> None:
    key = jobs.plant_expired()
    done = run("--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["tables"]["jobs"]["requeued"] == [key]
    # The log goes its own way.
    assert "pass_finished" in done.stderr


def test_a_pass_with_errors_exits_with_1_and_prints_json_all_the_same(
    jobs: Rows, run: Run, sql: Any
) -> None:
    key = jobs.plant_expired()
    sql("ALTER TABLE asr_jobs RENAME TO asr_jobs_away")
    try:
        done = run("--format", "json")
    finally:
        sql("ALTER TABLE asr_jobs_away RENAME TO asr_jobs")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["tables"]["jobs"]["requeued"] == [key]
    [error] = result["errors"]
    assert error.startswith("asr_jobs: ")
    assert error in done.stderr


def test_bad_usage_exits_with_2_and_prints_nothing_on_stdout(run: Run) -> None:
    unknown = run("--table", "jbos", "--format", "json")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "known tables: " in unknown.stderr
    assert "asr_jobs" in unknown.stderr
    refused = run("--batch-size", "0")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "at least 1" in refused.stderr


# The second is also read for the schedule of Celery beat, before there are checks.
@pytest.mark.parametrize("setting", ["DEFAULT_LEASE_SEC", "REAPER_INTERVAL_SEC"])
def test_bad_settings_are_named_and_nothing_is_reaped(jobs: Rows, run: Run, setting: str) -> None:
    key = jobs.plant_expired()
    before = jobs.row(key)
    done = run("--format", "json", **{setting: "soon"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert setting in done.stderr
    assert "jobreaper.E002" in done.stderr
    assert jobs.row(key) == before


@pytest.mark.slow
def test_an_unreachable_database_exits_with_1_and_prints_json(run: Run, tmp_path: Path) -> None:
    done = run("--format", "json", DATABASE_URL=f"postgresql:///none?host={tmp_path}")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["requeued"], result["failed"]) == (0, 0)
    assert result["errors"]


OTHER_DATABASE = """
import django
from django.conf import settings
from django.core.management import execute_from_command_line

settings.DATABASES["other"] = settings.DATABASES["default"]
settings.DATABASES["default"] = {**settings.DATABASES["other"], "HOST": "/nowhere"}
execute_from_command_line(["manage.py", "reap", "--database", "other", "--format", "json"])
"""


def test_a_pass_over_another_database_leaves_the_default_one_alone(
    jobs: Rows, environment: dict[str, str]
) -> None:
    key = jobs.plant_expired()
    done = subprocess.run(
        [sys.executable, "-c", OTHER_DATABASE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"]["jobs"]["requeued"] == [key]


def test_a_long_pass_shows_its_progress_on_a_terminal_and_nowhere_else(
    jobs: Rows, run: Run, environment: dict[str, str]
) -> None:
    for _ in range(7):
        jobs.plant_expired()
    terminal, end = pty.openpty()
    with os.fdopen(terminal, "rb") as screen:
        done = subprocess.run(
            [sys.executable, "manage.py", "reap", "--batch-size", "3", "--format", "json"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=end,
            text=True,
            timeout=60,
        )
        os.close(end)
        shown = b""
        try:
            while part := screen.read1(65536):
                shown += part
        except OSError:  # how Linux says that a terminal's other end is gone
            pass
    assert json.loads(done.stdout)["requeued"] == 7
    assert b"jobs: 3 reaped so far" in shown
    assert b"jobs: 6 reaped so far" in shown

    for _ in range(3):
        jobs.plant_expired()
    assert "so far" not in run("--batch-size", "3").stderr
