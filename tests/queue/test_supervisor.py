"""`manage.py work --processes`: workers that die are replaced, and their jobs run again."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from jobreaper import enqueue, enqueue_many
from jobreaper.queue.board import Board
from jobreaper.queue.wear import Wear, memory
from tests.processes.children import Child
from tests.queue.processes import PATIENCE_SEC, Start, ledger, work
from tests.rows import Rows, Sql
from tests.waiting import until

__all__ = ["ledger", "work"]

pytestmark = pytest.mark.usefixtures("transactional_db")

Ledger = Callable[[], list[dict[str, Any]]]

is_process = pytest.mark.process


def who(worker: Child) -> int:
    """The process that runs the next job."""
    said = worker.answer(PATIENCE_SEC)
    assert said.startswith("runs in ")
    return int(said.split()[-1])


def has_lost(worker: Child, number: int) -> bool:
    return worker.log.count("was lost: killed by") == number


def is_there(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@is_process
def test_a_killed_worker_is_replaced_and_its_job_runs_again_at_once(
    work: Start, jobs: Rows
) -> None:
    ids = enqueue_many([{}] * 2, type="who").ids
    # Longer than the test has patience: only who saw the death can have given the job back.
    worker = work("--processes", "2", "--no-housekeeping", lease_sec=600)
    first, second = who(worker), who(worker)
    assert len({first, second, worker.pid}) == 3
    os.kill(first, signal.SIGKILL)
    third = who(worker)
    assert third not in (first, second)
    worker.say("end")
    worker.say("end")
    until(lambda: {jobs.row(pk)["status"] for pk in ids} == {"success"}, PATIENCE_SEC)
    events = [event for pk in ids for event in jobs.events(pk)]
    [lost] = [event for event in events if event["type"] == "job:worker_lost"]
    assert lost["details"]["how"] == "killed by SIGKILL"
    assert f"worker process {first} was lost: killed by SIGKILL" in worker.log
    assert worker.terminate(PATIENCE_SEC) == 0


@is_process
def test_told_to_stop_all_processes_end_and_give_back_what_runs(work: Start, jobs: Rows) -> None:
    ids = [enqueue("hang", {"how": "sleep"}).pk for _ in range(3)]
    worker = work("--processes", "3", "--shutdown-timeout", "0", "--no-interrupt", lease_sec=600)
    for _ in ids:
        assert worker.answer(PATIENCE_SEC) == "hangs sleep"
    assert worker.terminate(PATIENCE_SEC) == 0
    rows = [jobs.row(pk) for pk in ids]
    assert {(row["status"], row["attempt_count"]) for row in rows} == {("queued", 0)}


@is_process
def test_a_worker_whose_interpreter_is_taken_is_killed_when_its_job_has_to_end(
    work: Start, jobs: Rows
) -> None:
    hog = enqueue("hang", {"how": "hog"}, stage="brief", max_attempts=1)
    worker = work("--processes", "2", "--no-listen", max_runtime_sec=1, lease_sec=600)
    assert worker.answer(PATIENCE_SEC) == "hangs hog"
    quick = [enqueue("noop").pk for _ in range(3)]
    until(lambda: {jobs.row(pk)["status"] for pk in quick} == {"success"}, PATIENCE_SEC)
    until(lambda: jobs.row(hog.pk)["status"] == "failed", PATIENCE_SEC)
    until(lambda: "is killed: its job did not end within its max_runtime" in worker.log)
    assert worker.terminate(PATIENCE_SEC) == 0


@is_process
def test_a_worker_that_has_to_be_killed_at_shutdown_costs_its_job_no_attempt(
    work: Start, jobs: Rows
) -> None:
    """The supervisor waits for five seconds."""
    key = enqueue("hang", {"how": "hog"}, max_attempts=1).pk
    options = ("--processes", "2", "--no-housekeeping", "--shutdown-timeout", "0")
    worker = work(*options, lease_sec=600)
    assert worker.answer(PATIENCE_SEC) == "hangs hog"
    assert worker.terminate(PATIENCE_SEC) == 0
    assert "is killed: it did not end at shutdown" in worker.log
    row = jobs.row(key)
    assert (row["status"], row["attempt_count"], row["reap_count"]) == ("queued", 0, 0)


@is_process
def test_without_their_supervisor_the_workers_stop(work: Start) -> None:
    enqueue_many([{}] * 2, type="who")
    worker = work("--processes", "2")
    pids = who(worker), who(worker)
    worker.say("end")
    worker.say("end")
    worker.kill()
    until(lambda: not any(map(is_there, pids)), PATIENCE_SEC)


@is_process
def test_a_process_that_has_run_enough_jobs_is_replaced_and_none_is_lost(
    work: Start, jobs: Rows, sql: Sql, ledger: Ledger
) -> None:
    ids = enqueue_many([{}] * 200, type="ledger").ids
    worker = work("--processes", "2", "--max-jobs", "30", lease_sec=600)
    until(lambda: len(ledger()) == len(ids), PATIENCE_SEC)
    assert {row["count"] for row in ledger()} == {1}
    assert worker.terminate(PATIENCE_SEC) == 0
    assert len(worker.lines()) >= 200 // 30
    assert {row["attempt_count"] for row in jobs.all().values()} == {1}


@is_process
def test_one_that_dies_again_and_again_is_replaced_ever_more_slowly(work: Start) -> None:
    worker = work("--processes", "2")
    killed = 0
    while "3 died young" not in worker.log:
        # One that lost its worker twice waits before it runs again.
        enqueue("who", max_attempts=1)
        os.kill(who(worker), signal.SIGKILL)
        killed += 1
        until(partial(has_lost, worker, killed), PATIENCE_SEC)
    assert "it is replaced in 0.5 s: 2 died young" in worker.log
    assert "it is replaced in 1.0 s: 3 died young" in worker.log
    assert worker.terminate(PATIENCE_SEC) == 0, worker.log


@is_process
def test_once_and_several_processes_exclude_each_other(work: Start) -> None:
    worker = work("--once", "--processes", "2")
    assert worker.process.wait(PATIENCE_SEC) == 2
    assert "--once works with one process only" in worker.log


def test_wear_is_jobs_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wear = Wear(10)
    assert (wear.room(0), wear.room(7), wear.room(12)) == (10, 3, 0)
    assert wear.is_enough(9) is None
    assert wear.is_enough(10) == "it has run 10 jobs"
    assert Wear().room(10**9) is None
    assert Wear(max_memory=memory() * 2).is_enough(10**9) is None
    assert "MB" in str(Wear(max_memory=memory() // 2).is_enough(0))


def test_the_board_is_read_in_another_process() -> None:
    board = Board()
    pid = os.fork()
    if not pid:
        board.hard_end = 7.5
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.hard_end == 7.5
