"""The tasks that run the jobs of the chaos."""

import os
import signal

from celery import shared_task

from jobreaper import Lease, LeasedTask
from project.media.models import Job
from tests.processes.effects import do_job


@shared_task(base=LeasedTask, model="media.Job", stage="short")
def short(job: Job, lease: Lease) -> None:
    do_job(lease)


@shared_task(base=LeasedTask, model="media.Job", stage="poison")
def poison(job: Job, lease: Lease) -> None:
    """A job that kills whoever runs it, as one does that wants more memory than there is."""
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(base=LeasedTask, model="media.Job", stage="killer")
def killer(job: Job, lease: Lease) -> None:
    """The same, in a stage that has no budget for lost workers."""
    os.kill(os.getpid(), signal.SIGKILL)
