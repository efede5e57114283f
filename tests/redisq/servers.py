"""Redis servers of a test's own, which it may kill and start again, with and without their data."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from project.embedded import binaries
from tests.waiting import until

# What this machine has of its own, as in most Linux distributions.
INSTALLED = shutil.which("redis-server")


def programs() -> dict[str, str]:
    """The servers that tests can use: the embedded one, and that of the machine if it has one."""
    found = {"embedded": str(binaries("redis") / "redis-server")}
    return found | ({"installed": INSTALLED} if INSTALLED else {})


class Server:
    """A Redis that keeps its data, listening on a socket under `home`."""

    def __init__(self, home: Path, program: str | None = None, *options: str) -> None:
        self.home = home
        self.socket = home / "redis.sock"
        self.program = program or programs()["embedded"]
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has loaded its data."""
        self.process = subprocess.Popen(
            [
                self.program,
                *("--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"),
                *("--unixsocket", str(self.socket), "--dir", str(self.home)),
                *self.options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self.answers)

    def answers(self) -> bool:
        """Whether it is ready for commands."""
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.connect(str(self.socket))
            client.sendall(b"PING\r\n")
            return client.recv(100) == b"+PONG\r\n"
        return False

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            # One that a test has stopped cannot end otherwise.
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)
            self.process = None

    def lose_data(self) -> None:
        """Delete what it has written, while it does not run."""
        assert self.process is None
        for path in self.home.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def restart(self, *, with_data: bool) -> None:
        """Kill it and start it again after a moment, as if the power had failed."""
        self.kill()
        if not with_data:
            self.lose_data()
        # Long enough for every client to notice.
        time.sleep(0.3)
        self.start()
