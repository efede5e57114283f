"""A worker: claims jobs of both tables, has ffmpeg do the work, finishes them.

The work goes into a file that belongs to this attempt alone. It gets its final name in the
transaction that finishes the job, so nobody ever sees half a file, or the file of a stale worker.
"""

from contextlib import suppress
from pathlib import Path
from threading import Event

from django.db import close_old_connections, transaction

from jobreaper import Lease, LeaseLost, claim_next
from project.media import work
from project.media.models import AsrJob, Job, MediaJob

POLL_SEC = 0.2


class Stopping(Exception):
    """This worker is asked to end in the middle of a job."""


def run_until(stop: Event) -> None:
    """Run due jobs of both tables in turn until `stop` is set; release the one in hand then."""
    while not stop.is_set():
        worked = [run_next(model, stop) for model in (Job, AsrJob)]
        if not any(worked):
            stop.wait(POLL_SEC)


def run_next(model: type[MediaJob], stop: Event) -> bool:
    """Claim the next due job and run it to its end; return whether there was one."""
    leases = claim_next(model)
    for lease in leases:
        # Whoever loses a lease has nothing left to do: the reaper has given the job to others.
        with lease, suppress(LeaseLost):
            _run(lease, stop)
    return bool(leases)


def _run(lease: Lease, stop: Event) -> None:
    job = lease.job

    def keep_going() -> None:
        lease.check()
        if stop.is_set():
            raise Stopping

    part = None
    try:
        source = Path(job.payload["source"])
        output = source.with_name(f"{source.stem}-{job.stage}-{job.pk}{work.suffix(job.stage)}")
        part = output.with_name(f"{output.stem}.{lease.epoch}.part{output.suffix}")
        work.run(job.stage, job.payload, part, keep_going)
        _finish(lease, part, output)
    except LeaseLost:
        raise
    except Stopping:
        lease.release()
    except Exception as error:
        lease.fail(error)
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _finish(lease: Lease, part: Path, output: Path) -> None:
    # The connection may have been closed at the other end while ffmpeg was at work.
    close_old_connections()
    with transaction.atomic():
        try:
            lease.finish()
        except LeaseLost:
            # Raised further it would undo the record of the rejected write, all that is in here.
            return
        lease.job.payload["output"] = str(output)
        lease.job.save(update_fields=["payload"])
        part.replace(output)
