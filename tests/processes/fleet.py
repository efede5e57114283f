"""Workers in numbers: forked from one parent, replaced when they die, at work until SIGTERM.

Each claims the next due job and finishes it together with its effect.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

import django

django.setup()

from django.db import OperationalError, connection  # noqa: E402

from jobreaper import LeaseLost, claim_next  # noqa: E402
from project.media.models import Job  # noqa: E402
from tests.processes.effects import do_job  # noqa: E402

IDLE_SEC = 0.02


def work(stages: Sequence[str] | None) -> None:
    while True:
        for lease in claim_next(Job, stages=stages):
            with lease:
                try:
                    do_job(lease)
                except (LeaseLost, OperationalError):
                    connection.close()
        time.sleep(IDLE_SEC)


def fork(stages: Sequence[str] | None) -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(stages)


def main(size: int, stages: Sequence[str] | None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in range(size):
        fork(stages)
    print("ready", flush=True)
    while True:
        os.wait()
        fork(stages)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or None)
