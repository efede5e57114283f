"""The handler of the example."""

import hashlib
import os
from pathlib import Path

from jobreaper.redisq import running
from jobreaper.redisq.job import Job

CHUNK = 1024 * 1024


def checksum(job: Job) -> None:
    """Write the SHA-256 of the job's file beside it.

    It may run twice, after a crash, and then writes the same: the name is taken last and at once.
    """
    path = Path(job.filepath)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            # A worker that was taken for dead stops here, since another one has the job.
            running.check()
    result = path.with_name(f"{path.name}.sha256")
    draft = result.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(f"{digest.hexdigest()}  {path.name}\n")
    draft.replace(result)
