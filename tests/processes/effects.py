"""What the jobs of these tests do: one row in the table `ledger` each."""

import time

from django.db import close_old_connections, connection, transaction

from jobreaper import Lease


def do_job(lease: Lease) -> None:
    """Work for as many seconds as the job says, then finish it together with its effect."""
    time.sleep(lease.job.payload.get("sec", 0.1))
    # The server may have ended this session meanwhile.
    close_old_connections()
    with transaction.atomic():
        write_effect(lease)
        lease.finish()


def write_effect(lease: Lease) -> None:
    """Do the job, as part of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ledger (job_id, epoch, worker) VALUES (%s, %s, %s)",
            [lease.pk, lease.epoch, lease.worker],
        )
