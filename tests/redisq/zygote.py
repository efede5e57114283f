"""Makes processes of the Redis queue for tests: it has imported everything and forks for each line
of JSON on its standard input, which takes milliseconds where a start takes a second.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

import django
import redis

READY = "ready"


def handle(job: Any) -> None:
    """Write the job into the ledger, and do what it says."""
    with redis.Redis(unix_socket_path=job.extra["at"], db=job.extra["db"]) as client:
        client.rpush(job.extra["ledger"], f"{job.id} {job.retries}")
        if job.extra.get("until"):
            # Until the test says so.
            while not client.exists(job.extra["until"]):
                threading.Event().wait(0.01)
    if job.retries < job.extra.get("fails", 0):
        raise ValueError("went wrong")


def work(document: dict[str, Any], drain_sec: float | None = None) -> None:
    """Be what `manage.py redisq --role=worker` runs."""
    from jobreaper.redisq.loading import from_document
    from jobreaper.redisq.serving import Service

    service = Service(from_document(document), produces=False, drain_sec=drain_sec)
    with open(os.devnull, "w") as nowhere:
        service.run(nowhere)


def reap(document: dict[str, Any]) -> None:
    """Be a reaper for one pass to the end."""
    from jobreaper.redisq.loading import from_document
    from jobreaper.redisq.reaper import Reaper

    Reaper(from_document(document)).run_pass(hold=False, budget=60)


def main() -> None:
    """Fork for each line, and answer with the child's process id."""
    django.setup()
    from jobreaper.redisq import loading, reaper, serving  # noqa: F401  for the children

    # Children that end are nobody's.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(READY, flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                role, arguments = json.loads(line)
                {"work": work, "reap": reap}[role](**arguments)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
