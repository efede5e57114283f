"""Handlers for tests and the benchmark."""

from typing import Any

from jobreaper.handlers import job_handler


@job_handler("noop")
def noop(job: Any, lease: Any) -> None:
    """Nothing."""
