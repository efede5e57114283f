"""The Celery tasks that run the media tables' jobs under a lease.

The work writes to a file that belongs only to this attempt. The file gets its final name in the
transaction that finishes the job, so nobody sees half a file, or the file of a stale worker.
"""

from pathlib import Path

from celery import shared_task
from django.db import close_old_connections, transaction

from jobreaper import Lease, LeasedTask, LeaseLost
from project.media import work
from project.media.models import AsrJob, Job


@shared_task(base=LeasedTask, model="media.Job")
def render(job: Job, lease: Lease) -> None:
    """Cut a clip or burn in a text."""
    _produce(lease)


@shared_task(base=LeasedTask, model="media.AsrJob")
def extract_sound(job: AsrJob, lease: Lease) -> None:
    """Extract the sound for a speech recognizer."""
    _produce(lease)


def _produce(lease: Lease) -> None:
    job = lease.job
    source = Path(job.payload["source"])
    output = source.with_name(f"{source.stem}-{job.stage}-{job.pk}{work.suffix(job.stage)}")
    part = output.with_name(f"{output.stem}.{lease.epoch}.part{output.suffix}")
    try:
        work.run(job.stage, job.payload, part, lease.check)
        _finish(lease, part, output)
    finally:
        part.unlink(missing_ok=True)


def _finish(lease: Lease, part: Path, output: Path) -> None:
    # The server may have closed the connection while ffmpeg was running.
    close_old_connections()
    with transaction.atomic():
        try:
            lease.finish()
        except LeaseLost:
            # Raised inside the block, it would roll back the record of the rejected write.
            pass
        else:
            lease.job.payload["output"] = str(output)
            lease.job.save(update_fields=["payload"])
            part.replace(output)
    lease.check()
