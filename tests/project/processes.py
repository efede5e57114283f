"""What is left of processes that should be gone."""

from pathlib import Path

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Tell whether it runs no more. Not every container's first process buries its orphans."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def left_over(home: Path) -> list[psutil.Process]:
    """Return the living processes that were started with TMPDIR at `home`, or name it."""
    return [
        process
        for process in psutil.process_iter()
        if _belongs_to(process, str(home)) and not has_ended(process)
    ]


def _belongs_to(process: psutil.Process, home: str) -> bool:
    try:
        return process.environ().get("TMPDIR") == home or home in " ".join(process.cmdline())
    except psutil.Error:
        return False
