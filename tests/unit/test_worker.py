"""A worker's id is its own, whatever its host name and pid were before."""

import os
import socket
import subprocess
import sys

from jobreaper.identity import local_clock, worker_id

# Forks before a thread could make that unsafe, and prints the ids of parent and child.
FORKS = """
import os
from jobreaper.identity import id_of_child, worker_id
print(worker_id(), flush=True)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
    print(id_of_child(pid))
    print(worker_id())
else:
    print(worker_id(), flush=True)
    os._exit(0)
"""


def ids_of_a_forking_process() -> list[str]:
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_an_id_is_host_name_pid_and_boot_token() -> None:
    host, pid, token = worker_id().rsplit(":", 2)
    assert host == socket.gethostname()
    assert int(pid) == os.getpid()
    assert len(token) == 8


def test_an_id_stays_the_same_while_the_process_lives() -> None:
    assert worker_id() == worker_id()


def test_a_forked_child_has_a_token_of_its_own_that_its_parent_can_name() -> None:
    parent, child, as_named_by_parent, parent_again = ids_of_a_forking_process()
    assert child == as_named_by_parent
    assert parent == parent_again
    assert child.split(":")[-1] != parent.split(":")[-1]


def test_the_same_program_started_again_is_another_worker() -> None:
    tokens = {id.split(":")[-1] for _ in range(2) for id in ids_of_a_forking_process()}
    assert len(tokens) == 4


def test_the_local_clock_never_steps_back() -> None:
    readings = [local_clock() for _ in range(1000)]
    assert readings == sorted(readings)
