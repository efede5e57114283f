"""A worker that is not Python, beside Python workers on the same table."""

import json
import signal
import time
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from jobreaper import claim, reap
from jobreaper.presence.watcher import take_back_from_gone
from jobreaper.schema import functions
from project.media.models import Job
from tests.processes.children import Child
from tests.processes.conftest import LEASE_SEC, ReadEvents, ReadRow, Sql, Start, beats
from tests.processes.node import installed_worker, start_node
from tests.waiting import until

__all__ = ["installed_worker", "start_node"]

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]


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


def test_a_killed_workers_job_runs_on_another_long_before_its_lease_ends(
    start_node: Start, sql: Sql, events: ReadEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENCE_GRACE_SEC", "0.5")
    with override_settings(JOBREAPER={"STAGES": {"clip": {"lease": "5m"}}}):
        functions.policies(connection).create(connection)
    killed = start_node()
    job = enqueue(sql, 60)
    assert killed.answer() == f"claimed {job}"
    other = start_node()
    killed.freeze()
    assert take_back_from_gone(connection) == 0
    killed.kill()
    assert until(lambda: take_back_from_gone(connection) == 1)
    assert other.answer() == f"claimed {job}"
    assert events(job) == ["job:worker_lost"]
    other.process.send_signal(signal.SIGTERM)
    assert other.answer() == f"released {job}"
    assert other.process.wait(10) == 0
    [row] = sql("TABLE jobreaper_workers")
    assert (row["kind"], row["pid"], row["taken"]) == ("foreign", killed.pid, 1)


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
        functions.policies(connection).create(connection)
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
