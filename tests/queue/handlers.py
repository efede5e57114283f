"""Handlers for tests and the benchmark."""

import sys
from typing import Any

from django.db import connection, transaction

from jobreaper.handlers import job_handler


@job_handler("noop")
def noop(job: Any, lease: Any) -> None:
    """Nothing."""


@job_handler("until-told")
def until_told(job: Any, lease: Any) -> None:
    """Say that it has begun, and end when told to."""
    print("began", job.pk, flush=True)
    sys.stdin.readline()


@job_handler("ledger")
def write_ledger(job: Any, lease: Any) -> None:
    """Write the effect and the end of the job in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger VALUES (%s, %s)", [str(job.pk), lease.epoch])
        lease.finish()
