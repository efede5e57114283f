"""A network that a test can break: a proxy between a process and its PostgreSQL server."""

import select
import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

# Closing a socket with it sends a reset, and throws away what was on its way.
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections made to a port of this machine to the server that `dsn` names.

    `delay()` lets every packet take longer. `hang()` lets every byte get stuck without an error, as
    a network does that drops packets: neither side hears anything, not even that the other one is
    gone. `reset()` ends the connections that are open. `cut()` does so too and refuses new ones, as
    a stopped server does. `mend()` ends all of it.
    """

    def __init__(self, dsn: str) -> None:
        self._target = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        # Whether somebody waits for an answer that does not come.
        self.stuck = False
        self._delay_sec = 0.0
        self._refuses = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        parts = {**self._target, "host": host, "port": str(port)}
        self.url = "postgresql:///?" + urlencode(parts, quote_via=quote)
        threading.Thread(target=self._accept, daemon=True).start()

    def delay(self, seconds: float) -> None:
        self._delay_sec = seconds

    def hang(self) -> None:
        self.stuck = False
        self._flowing.clear()

    def reset(self) -> None:
        with self._lock:
            for near, far in self._open:
                with suppress(OSError):
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    # It wakes the thread that forwards, which closes both.
                    far.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._refuses = True
        self.reset()

    def mend(self) -> None:
        self._delay_sec = 0.0
        self._refuses = False
        self._flowing.set()

    def close(self) -> None:
        """Let go of everything."""
        self.cut()
        self._flowing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            self._flowing.wait()
            with self._connect() as far:
                with self._lock:
                    if self._refuses:
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        return
                    self._open.add((near, far))
                try:
                    self._forward(near, far)
                finally:
                    with self._lock:
                        self._open.remove((near, far))

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        while True:
            for end in select.select([near, far], [], [])[0]:
                data = end.recv(65536)
                if self._delay_sec:
                    time.sleep(self._delay_sec)
                if not self._flowing.is_set():
                    self.stuck = True
                    self._flowing.wait()
                if not data:
                    return
                (far if end is near else near).sendall(data)

    def _connect(self) -> socket.socket:
        host, port = self._target["host"], int(self._target.get("port", 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            far.close()
            raise
        return far
