"""Handlers of the tests' jobs. What a job does is in its `extra`."""

import threading

from jobreaper.redisq import running
from jobreaper.redisq.job import Job

started: list[str] = []
go_on = threading.Event()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


def handle(job: Job) -> None:
    """Do what the job says."""
    started.append(job.id)
    match job.extra.get("do"):
        case "fail":
            raise ValueError("went wrong")
        case "exit":
            raise SystemExit(3)
        case "be unspeakable":
            raise Unspeakable
        case "wait":
            assert go_on.wait(60)
        case "check":
            while not go_on.wait(0.02):
                running.check()


def reset() -> None:
    """Before each test."""
    started.clear()
    go_on.clear()


not_a_function = "text"
