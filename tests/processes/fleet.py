"""Workers in numbers: forked from one parent, replaced when they die, at work until SIGTERM.

Each claims the next due job, takes up to half a second over it and finishes it together with its
effect.
"""

import os
import random
import signal
import sys
import time

import django

django.setup()

from django.db import OperationalError, connection, transaction  # noqa: E402

from jobreaper import LeaseLost, claim_next  # noqa: E402
from project.media.models import Job  # noqa: E402
from tests.processes.effects import write_effect  # noqa: E402

LONGEST_JOB_SEC = 0.5


def work() -> None:
    random.seed(os.getpid())
    while True:
        for lease in claim_next(Job):
            with lease:
                time.sleep(random.uniform(0, LONGEST_JOB_SEC))
                try:
                    with transaction.atomic():
                        write_effect(lease)
                        lease.finish()
                except (LeaseLost, OperationalError):
                    connection.close()
        time.sleep(0.02)


def fork() -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()


def main(size: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in range(size):
        fork()
    print("ready", flush=True)
    while True:
        os.wait()
        fork()


if __name__ == "__main__":
    main(int(sys.argv[1]))
