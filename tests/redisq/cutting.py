"""A way to Redis on which a process can be killed at a certain command: before it reaches the
server, or after it was carried out and before its answer is back.
"""

import contextlib
import hashlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from jobreaper.redisq.scripts import source

BEFORE, AFTER = "before", "after"


def mark_of(command: str) -> bytes:
    """What a command contains on the wire: the digest of a script, or the name of a command."""
    if command.isupper():
        return command.encode()
    return hashlib.sha1(source(command).encode()).hexdigest().encode()  # noqa: S324  Redis's own


class Cut:
    """Listens on `path` and passes everything on to the socket of the server, until it meets
    `command`, for the `nth` time. Then it calls `kill`, and nothing gets through any more.
    """

    def __init__(self, path: Path, server: Path, command: str, when: str, nth: int = 1) -> None:
        self.path = path
        self.server = server
        self.mark = mark_of(command)
        self.when = when
        self.remaining = nth
        self.kill: Callable[[], None] = lambda: None
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.servers: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Wakes the thread that waits in accept().
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(self.server))
            self.servers.append(server)
            met = False
            while not self.done.is_set():
                readable, _, _ = select.select([client, server], [], [])
                if client in readable:
                    said = client.recv(1 << 20)
                    if not said:
                        return
                    # The digest is at the beginning of a command, which may come in pieces.
                    if self.mark in said:
                        if self.when == BEFORE and self._is_now():
                            return
                        met = True
                    server.sendall(said)
                if server in readable:
                    answer = server.recv(1 << 20)
                    was_done = met and not answer.startswith(b"-NOSCRIPT")
                    if not answer or (was_done and self.when == AFTER and self._is_now()):
                        return
                    met = False
                    client.sendall(answer)

    def _is_now(self) -> bool:
        with self.lock:
            if self.done.is_set():
                return True
            self.remaining -= 1
            if self.remaining:
                return False
            self.kill()
            # As the end of the process would, so that nothing is given to a waiting one.
            for server in self.servers:
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
            self.done.set()
            return True
