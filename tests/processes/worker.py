"""A worker that does as it is told: an order a line on standard input, an answer a line.

Each job's effect is a row in the table `ledger`, written in the transaction that finishes the job.
"""

import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable

import django
from django.conf import settings

if "POOL_SIZE" in os.environ:
    size = int(os.environ["POOL_SIZE"])
    settings.DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": size, "max_size": size}

django.setup()

from django.db import connection, transaction  # noqa: E402

from jobreaper.exceptions import LeaseLost  # noqa: E402
from jobreaper.identity import worker_id  # noqa: E402
from jobreaper.protocol.claim import claim  # noqa: E402
from jobreaper.protocol.lease import Lease  # noqa: E402
from project.media.models import Job  # noqa: E402
from tests.processes.effects import write_effect  # noqa: E402


def say(*words: object) -> None:
    print(*words, flush=True)


def order() -> str:
    return sys.stdin.readline().strip()


class Worker:
    """Holds one lease at a time; each method is an order, its result the answer."""

    lease: Lease

    def claim(self, pk: str) -> str:
        lease = claim(Job, int(pk))
        if lease is None:
            return "refused"
        self.lease = lease.__enter__()
        return "claimed"

    def leave_a_fork(self) -> str:
        """Fork a process that lives on; return its id."""
        if pid := os.fork():
            return str(pid)
        time.sleep(600)
        os._exit(0)

    def identify(self) -> str:
        return worker_id()

    def work_and_finish(self) -> str:
        """The transaction as a worker writes it: the effect and the end of the job, or neither."""
        with transaction.atomic():
            write_effect(self.lease)
            self.lease.finish()
        return "finished"

    def work_and_finish_in_steps(self) -> str:
        """The same, waiting for an order after each statement."""
        with transaction.atomic():
            write_effect(self.lease)
            say("effect written")
            order()
            self.lease.finish()
            say("finish sent")
            order()
        return "finished"

    def finish(self) -> str:
        self.lease.finish()
        return "finished"

    def fail(self) -> str:
        return "retried" if self.lease.fail("went_wrong") else "failed"

    def release(self) -> str:
        self.lease.release()
        return "released"

    def check(self) -> str:
        self.lease.check()
        return "held"

    def work_until_lost(self) -> str:
        """Check the lease as a loop of work does; return the last moment at which it stood."""
        last_good = 0.0
        while True:
            now = time.time()
            try:
                self.lease.check()
            except LeaseLost:
                return str(last_good)
            last_good = now
            time.sleep(0.001)

    def hold_the_gil(self, seconds: str) -> str:
        """A native call that lets no other thread of this process run."""
        ctypes.PyDLL(None).usleep(int(float(seconds) * 1_000_000))
        return "done"

    def fork(self) -> str:
        """Let a child take the orders until it exits; this process waits and beats meanwhile."""
        child = os.fork()
        if child == 0:
            # The connection is the parent's; psycopg leaves it alone when a child drops it.
            connection.connection = None
            say("forked", os.getpid())
            serve(Worker())
            os._exit(0)
        os.waitpid(child, 0)
        return "joined"


def serve(worker: Worker) -> None:
    while (line := order()) not in ("", "exit"):
        verb, *arguments = line.split()
        method: Callable[..., str] = getattr(worker, verb)
        try:
            answer = method(*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = type(error).__name__
        say(answer)


if __name__ == "__main__":
    say("ready")
    serve(Worker())
