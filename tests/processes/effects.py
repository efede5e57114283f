"""What the jobs of these tests do: one row in the table `ledger` each."""

from django.db import connection

from jobreaper import Lease


def write_effect(lease: Lease) -> None:
    """Do the job, as part of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ledger (job_id, epoch, worker) VALUES (%s, %s, %s)",
            [lease.pk, lease.epoch, lease.worker],
        )
