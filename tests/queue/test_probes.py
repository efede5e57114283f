"""Probes of an orchestrator: whether a worker is live and ready."""

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from jobreaper import enqueue
from jobreaper.identity import local_clock
from jobreaper.management.probe import answering, listen
from jobreaper.queue import board, pulse
from jobreaper.queue.pulse import Pulse
from jobreaper.queue.worker import DEFAULT_SHUTDOWN_SEC
from tests.docs import markdown
from tests.queue.processes import PATIENCE_SEC, Start
from tests.rows import Rows
from tests.waiting import until

Answer = tuple[int, dict[str, Any]]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ask(port: int, path: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if "json" not in answer.getheader("Content-Type", ""):
        return answer.status, {"text": body.decode()}
    return answer.status, json.loads(body)


def answers(port: int, path: str) -> Answer | None:
    with suppress(OSError):
        return ask(port, path)
    return None


@pytest.mark.process
@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_is_live_and_ready_until_it_is_told_to_stop(
    processes: int, port: int, work: Start, jobs: Rows
) -> None:
    worker = work("--health", f"127.0.0.1:{port}", "--processes", str(processes))
    until(lambda: answers(port, "/ready") == (200, {"ok": True, "troubles": []}), PATIENCE_SEC)
    assert ask(port, "/live") == (200, {"ok": True, "troubles": []})
    status, said = ask(port, "/")
    assert (status, said["pages"]) == (404, ["/live", "/metrics", "/ready"])
    metrics = ask(port, "/metrics")[1]["text"]
    assert "jobreaper_up 1.0" in metrics
    # What a supervisor counts itself says nothing about its workers.
    assert ("python_info" in metrics) == (processes == 1)
    # All of its threads are busy, and it has nothing to do but wait.
    for _ in range(processes):
        enqueue("until-told")
        assert worker.answer(PATIENCE_SEC).startswith("began ")
    assert ask(port, "/live")[0] == 200
    worker.process.send_signal(signal.SIGTERM)
    told = ["it was told to stop"]
    until(lambda: ask(port, "/ready")[1]["troubles"] == told)
    assert ask(port, "/live")[0] == 200
    for _ in range(processes):
        worker.say("end")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(PATIENCE_SEC) == 0


# A worker is waited for no longer than the test has patience.
IMPATIENT = """
import sys
import django
from django.core.management import execute_from_command_line
django.setup()
from jobreaper.queue import board, pulse

board.STILL_SEC, board.REPORT_SEC, pulse.STILL_SEC = 8.0, 0.2, 8.0
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_one_of_several_workers_that_stands_still_is_told_until_it_goes_on(
    port: int, work: Start
) -> None:
    worker = work("--health", f"127.0.0.1:{port}", "--processes", "2", program=("-c", IMPATIENT))
    until(lambda: answers(port, "/ready") == (200, {"ok": True, "troubles": []}), PATIENCE_SEC)
    enqueue("who")
    pid = int(worker.answer(PATIENCE_SEC).split()[-1])
    with socket.create_connection(("127.0.0.1", port)):
        # One that says nothing is in nobody's way.
        assert ask(port, "/live")[0] == 200
    os.kill(pid, signal.SIGSTOP)
    said = until(lambda: ask(port, "/live")[1]["troubles"], PATIENCE_SEC)
    assert [trouble.partition(" for ")[0] for trouble in said] == [
        f"worker process {pid} has said nothing"
    ]
    assert ask(port, "/ready")[0] == 200
    os.kill(pid, signal.SIGCONT)
    until(lambda: ask(port, "/live")[0] == 200, PATIENCE_SEC)
    worker.say("end")
    assert worker.terminate(PATIENCE_SEC) == 0


def test_a_worker_that_knows_that_it_is_ill_says_so_on_its_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "REPORT_SEC", 0.01)
    now = local_clock()
    new = board.Board()
    assert new.why_not_live(now) is None
    assert new.why_not_live(now - 2 * pulse.STILL_SEC) is not None
    troubles: list[str] = []
    with board.reporting(new, lambda: troubles):
        until(lambda: new.why_not_live(now - 2 * pulse.STILL_SEC) is None)
        troubles.append("the main thread stands still")
        until(lambda: str(new.why_not_live(now)).startswith("stands still"))
        troubles.clear()
        until(lambda: new.why_not_live(now) is None)


@pytest.mark.process
@pytest.mark.usefixtures("transactional_db")
def test_an_address_that_is_taken_is_told(port: int, work: Start) -> None:
    with socket.create_server(("127.0.0.1", port)):
        worker = work("--health", f"127.0.0.1:{port}")
        assert worker.process.wait(PATIENCE_SEC) == 2
        assert f"--health cannot listen at 127.0.0.1:{port}: Address already" in worker.log


def test_a_main_thread_that_stands_still_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "ANSWER_SEC", 0.1)
    monkeypatch.setattr(pulse, "STILL_SEC", 0.05)
    rung = threading.Event()
    still = Pulse(rung.set)
    assert still.still_sec() is not None
    assert rung.is_set()
    turning = Pulse(lambda: turning.beat())
    assert turning.still_sec() is None


def test_a_client_that_says_nothing_holds_up_nobody(port: int) -> None:
    server = listen("127.0.0.1", port, list, list, threads=True)
    with answering(server), socket.create_connection(("127.0.0.1", port)):
        assert ask(port, "/live")[0] == 200


def blocks(language: str) -> Iterator[str]:
    text = markdown.page("deploys")
    for block in text.split(f"```{language}\n")[1:]:
        yield block.partition("```")[0]


def test_the_manifests_in_the_docs_can_be_read_and_name_what_there_is() -> None:
    yaml = pytest.importorskip("yaml")
    parsed = [yaml.safe_load(block) for block in blocks("yaml")]
    containers = [one["spec"]["containers"][0] for one in parsed if "containers" in one["spec"]]
    options = {word for one in containers for word in one["command"] if word.startswith("--")}
    assert {"--health", "--shutdown-timeout"} <= options
    probes = [one for one in containers if "livenessProbe" in one]
    assert probes[0]["livenessProbe"]["httpGet"]["path"] == "/live"
    assert probes[0]["readinessProbe"]["httpGet"]["path"] == "/ready"
    [unit] = blocks("ini")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert "manage.py work" in settings["ExecStart"]
    assert int(settings["TimeoutStopSec"]) > DEFAULT_SHUTDOWN_SEC
    assert settings["Restart"] == "always"
