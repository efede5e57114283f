"""The files by which the tasks of the workers and the tests understand each other."""

from pathlib import Path
from typing import Any


def begun(payload: dict[str, Any], attempt: int) -> Path:
    """Return the file that is there once a job's function runs: its row says so before the claim
    has come to its end.
    """
    return Path(payload["file"]).with_suffix(f".begun-{attempt}")
