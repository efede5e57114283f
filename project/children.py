"""Children that end with their parent, even when that is ended by `kill -9`.

Linux kills them where they ask for it. They must ask themselves, and Python code between fork and
exec is unsafe beside threads; so a small Python starts first, asks, and becomes the program.
Elsewhere a child outlives a parent that could not stop it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command`; `options` are Popen's. Call it in a thread that lasts as long as the child:
    to Linux the parent is the thread.
    """
    first = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    return subprocess.Popen(
        [*first, *command] if sys.platform == "linux" else command,
        stdin=subprocess.DEVNULL,
        **options,
    )


def _become(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # Otherwise it ended before it was asked about.
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
