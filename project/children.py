"""Children that end with their parent, even after `kill -9`.

Linux kills a child with its parent if the child asks for it. Python code between fork and exec is
not safe with threads, so a small Python program starts first, asks, and then becomes the program.
On other systems, a child survives a parent that could not stop it.
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
    """Start `command`; `options` are those of Popen. Call this in a thread that lasts as long as
    the child: for Linux, the thread is the parent.
    """
    first = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    return subprocess.Popen(
        [*first, *command] if sys.platform == "linux" else command,
        stdin=subprocess.DEVNULL,
        **options,
    )


def _become(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # Otherwise the parent ended before the child asked.
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
