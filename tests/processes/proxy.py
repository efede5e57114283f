"""A network that a test can break: a proxy between a process and its PostgreSQL server."""

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    """Forwards connections made to a socket in `directory` to the server that `dsn` names.

    `hang()` lets every byte get stuck without an error, as a network does that drops packets;
    `cut()` closes every connection and refuses new ones, as a stopped server does; `mend()` ends
    either.
    """

    def __init__(self, dsn: str, directory: Path) -> None:
        self._target = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        # Whether somebody waits for an answer that does not come.
        self.stuck = False
        self._path = directory / ".s.PGSQL.5432"
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        parts = {**self._target, "host": str(directory), "port": "5432"}
        self.url = "postgresql:///?" + urlencode(parts, quote_via=quote)
        self._listen()

    def hang(self) -> None:
        self.stuck = False
        self._flowing.clear()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            self._path.unlink()
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._flowing.set()
        if self._listener is None:
            self._listen()

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, self._connect() as far:
            with self._lock:
                self._open |= {near, far}
            with suppress(OSError):
                while True:
                    for end in select.select([near, far], [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        if not self._flowing.is_set():
                            self.stuck = True
                            self._flowing.wait()
                        (far if end is near else near).sendall(data)
            with self._lock:
                self._open -= {near, far}

    def _connect(self) -> socket.socket:
        host, port = self._target["host"], int(self._target.get("port", 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{host}/.s.PGSQL.{port}")
        return far
