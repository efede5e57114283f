"""Keys between processes: several enqueue the same jobs, and one dies with a job in hand."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobreaper import enqueue, reap
from jobreaper.models import Job
from tests.processes.children import Child
from tests.rows import Rows
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

Start = Callable[..., Child]

KEYS = 200

# Four threads each enqueue every key, in an order of their own.
ENQUEUE = f"""
import random, threading
from django.db import connections
from jobreaper import enqueue
print("ready", flush=True)
input()
made, lock = set(), threading.Lock()
def run():
    for n in random.sample(range({KEYS}), {KEYS}):
        job = enqueue("mail", {{"n": n}}, dedupe=random.choice(["skip", "replace"]))
        with lock:
            made.add((n, str(job.pk)))
    connections.close_all()
threads = [threading.Thread(target=run) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(made), *(pk for _, pk in sorted(made)), flush=True)
"""


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start `manage.py` on the test database."""
    children: list[Child] = []

    def start(*arguments: str) -> Child:
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.queue.settings",
            "DATABASE_URL": database_url,
            "DEFAULT_LEASE_SEC": "2",
            "HEARTBEAT_SEC": "0.4",
        }
        log = tmp_path / f"{len(children)}.log"
        children.append(Child(["manage.py", *arguments], environment, log))
        return children[-1]

    yield start
    for child in children:
        child.end()


def test_of_equal_keys_from_many_threads_and_processes_one_job_is_made_and_none_is_refused(
    start: Start, jobs: Rows
) -> None:
    rivals = [start("shell", "--no-imports", "-c", ENQUEUE) for _ in range(3)]
    assert [rival.answer(60) for rival in rivals] == ["ready"] * 3
    for rival in rivals:
        rival.say("go")
    answers = [rival.answer(60) for rival in rivals]
    # Each thread of each process got the same job for a key.
    assert len(set(answers)) == 1
    assert answers[0].split()[0] == str(KEYS)
    rows = jobs.all()
    assert {str(pk) for pk in rows} == set(answers[0].split()[1:])
    assert {row["status"] for row in rows.values()} == {"queued"}


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_the_key_of_a_job_whose_worker_was_killed_is_free_when_the_job_has_failed(
    max_attempts: int, start: Start, jobs: Rows
) -> None:
    """openedx#25461: a dead holder of a unique key blocks every new job."""

    def same(**wishes: Any) -> Job:
        return enqueue("until-told", dedupe="skip", dedupe_key="one", **wishes)

    holder = same(max_attempts=max_attempts)
    for attempt in range(1, max_attempts + 1):
        worker = start("work")
        assert worker.answer(60) == f"began {holder.pk}"
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        assert same().pk == holder.pk, attempt
        until(lambda: (reap([Job]), _ended(jobs, holder.pk))[1])
        jobs.set(holder.pk, next_earliest_run_at=None)
    row = jobs.row(holder.pk)
    assert (row["status"], row["fail_code"], row["reap_count"]) == (
        "failed",
        "timeout",
        max_attempts,
    )
    assert same().pk != holder.pk


def _ended(jobs: Rows, pk: Any) -> bool:
    return bool(jobs.row(pk)["status"] != "processing")
