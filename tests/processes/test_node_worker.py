"""A worker that is not Python, beside Python workers on the same table."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from jobreaper import claim, conf, installed, reap
from project.media.models import Job
from tests.processes.children import ROOT, Child
from tests.processes.conftest import LEASE_SEC, ReadEvents, ReadRow, Sql, Start, beats
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

SOURCE = ROOT / "project" / "node_worker"
# What `short_leases` sets and jobreaper_policies() carries.
SHORT = ("DEFAULT_LEASE_SEC", "JOB_RETRY_BACKOFF_MS_BASE", "JOB_RETRY_BACKOFF_MS_MAX")
EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture(scope="session")
def installed_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker with its npm package, in a directory of its own."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")
    directory = tmp_path_factory.mktemp("node_worker")
    for name in ("worker.js", "package.json"):
        shutil.copy(SOURCE / name, directory)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install the worker's package: {done.stderr.strip()[-200:]}")
    return directory


@pytest.fixture
def start_node(
    installed_worker: Path, dsn: str, short_leases: None, start: Start
) -> Iterator[Start]:
    """Start the worker; the functions' leases are as short as the others'."""
    installed.policies(connection).create(connection)
    parts = conninfo_to_dict(dsn)
    names = {"dbname": "PGDATABASE", "host": "PGHOST", "port": "PGPORT", "user": "PGUSER"}
    target = {names[key]: str(value) for key, value in parts.items() if key in names}

    def run(**environment: str) -> Child:
        program = ("-c", EXEC, "node", str(installed_worker / "worker.js"), "jobs")
        child = start(*program, **target, **{"DATABASE_URL": "", **environment})
        assert child.answer() == "ready"
        return child

    yield run
    with pytest.MonkeyPatch.context() as patch:
        for name in SHORT:
            patch.delenv(name)
        conf.reset()
        installed.policies(connection).create(connection)
    conf.reset()


def enqueue(sql: Sql, seconds: float = 0) -> int:
    [row] = sql(
        "INSERT INTO jobs (stage, payload) VALUES ('clip', %s) RETURNING id",
        json.dumps({"seconds": seconds}),
    )
    return int(row["id"])


def let_the_lease_lapse(sql: Sql, pk: int) -> None:
    sql("UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE id = %s", pk)
    assert reap([Job]).requeued_ids["jobs"] == [pk]


def test_it_works_beside_a_python_worker(start_node: Start, sql: Sql, events: ReadEvents) -> None:
    node = start_node()
    theirs = enqueue(sql, 60)
    assert node.answer() == f"claimed {theirs}"
    ours = enqueue(sql)
    lease = claim(Job, ours)
    assert lease is not None
    assert claim(Job, theirs) is None
    lease.finish()
    assert events(ours) == ["job:finished"]
    assert node.terminate() == 0


def test_it_finishes_its_job_and_the_record_is_that_of_any_worker(
    start_node: Start, sql: Sql, row: ReadRow, events: ReadEvents
) -> None:
    node = start_node()
    job = enqueue(sql)
    assert [node.answer(), node.answer()] == [f"claimed {job}", f"finished {job}"]
    after = row(job)
    assert (after["status"], after["lease_epoch"], after["attempt_count"]) == ("success", 1, 1)
    assert events(job) == ["job:finished"]
    assert node.terminate() == 0


def test_a_job_longer_than_its_lease_is_not_reaped_while_it_beats(
    start_node: Start, sql: Sql, row: ReadRow
) -> None:
    node = start_node()
    job = enqueue(sql, 4)
    assert node.answer() == f"claimed {job}"
    while row(job)["status"] == "processing":
        assert reap([Job]).requeued == 0
    assert node.answer() == f"finished {job}"
    assert row(job)["lease_epoch"] == 1


def test_a_job_whose_worker_was_killed_is_finished_by_python(
    start_node: Start, sql: Sql, row: ReadRow, events: ReadEvents
) -> None:
    node = start_node()
    job = enqueue(sql, 60)
    assert node.answer() == f"claimed {job}"
    assert beats(row, job)
    node.kill()
    until(lambda: reap([Job]).requeued_ids["jobs"] == [job])
    lease = until(lambda: claim(Job, job))
    lease.finish()
    after = row(job)
    assert (after["status"], after["attempt_count"], after["reap_count"]) == ("success", 2, 1)
    assert events(job) == ["reaper:requeued", "job:finished"]


def test_a_frozen_worker_cannot_finish_what_another_has_taken_over(
    start_node: Start, sql: Sql, row: ReadRow, events: ReadEvents
) -> None:
    # It beats too seldom to notice by itself: the finishing write is what is put to the test.
    node = start_node(HEARTBEAT_SEC="1000")
    job = enqueue(sql, 0.5)
    assert node.answer() == f"claimed {job}"
    node.freeze()
    let_the_lease_lapse(sql, job)
    lease = until(lambda: claim(Job, job))
    before = row(job)
    node.thaw()
    assert node.answer() == f"refused {job}"
    assert row(job) == {**before, "expired": row(job)["expired"]}
    assert events(job) == ["reaper:requeued", "job:stale_write_rejected"]
    lease.finish()
    assert row(job)["status"] == "success"


def test_a_worker_that_wakes_up_stops_its_work(start_node: Start, sql: Sql, row: ReadRow) -> None:
    node = start_node()
    job = enqueue(sql, 60)
    assert node.answer() == f"claimed {job}"
    node.freeze()
    let_the_lease_lapse(sql, job)
    node.thaw()
    assert node.answer() == f"lost {job}"


def seconds_until_lost(node: Child, job: int) -> float:
    assert node.answer() == f"claimed {job}"
    claimed = time.monotonic()
    assert node.answer() == f"lost {job}"
    return time.monotonic() - claimed


def test_a_lease_that_no_beat_renews_is_given_up_when_it_ends(start_node: Start, sql: Sql) -> None:
    node = start_node(HEARTBEAT_SEC="1000")
    assert seconds_until_lost(node, enqueue(sql, 60)) < LEASE_SEC + 0.3


@pytest.mark.parametrize("heartbeat_sec", ["0.2", "0.9"])
def test_a_job_is_given_up_at_its_deadline(start_node: Start, sql: Sql, heartbeat_sec: str) -> None:
    stages = {"clip": {"max_runtime": f"{LEASE_SEC + 1}s"}}
    with override_settings(JOBREAPER={"STAGES": stages}):
        installed.policies(connection).create(connection)
    node = start_node(HEARTBEAT_SEC=heartbeat_sec)
    taken = seconds_until_lost(node, enqueue(sql, 60))
    assert LEASE_SEC + 0.5 < taken < LEASE_SEC + 1.3


def test_beats_that_get_no_answer_are_not_piled_up_and_the_lease_is_given_up_when_it_ends(
    start_node: Start, sql: Sql, second_connection: psycopg.Connection[Any]
) -> None:
    node = start_node(HEARTBEAT_SEC="0.1")
    job = enqueue(sql, 60)
    assert node.answer() == f"claimed {job}"
    second_connection.execute("LOCK TABLE jobs")
    locked = time.monotonic()
    assert node.answer() == f"lost {job}"
    assert time.monotonic() - locked < LEASE_SEC + 0.3
    second_connection.rollback()
    assert node.terminate() == 0
    assert node.log == ""


def test_sigterm_gives_the_job_back_and_no_attempt_is_counted(
    start_node: Start, sql: Sql, row: ReadRow, events: ReadEvents
) -> None:
    node = start_node()
    job = enqueue(sql, 60)
    assert node.answer() == f"claimed {job}"
    node.process.send_signal(signal.SIGTERM)
    assert node.answer() == f"released {job}"
    assert node.process.wait(10) == 0
    after = row(job)
    assert (after["status"], after["attempt_count"], after["locked_by"]) == ("queued", 0, None)
    assert events(job) == ["job:released"]
