"""``manage.py work --health HOST:PORT``: answers the probes of an orchestrator over HTTP.

``/live`` fails when a restart would help, ``/ready`` when the worker takes no jobs for now. Neither
asks the database: a worker that is restarted because the database is down helps nobody.
``/metrics`` is there if prometheus_client is installed.

A worker answers in threads. A supervisor, which has none, forks for each answer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any, Final

from django.db import connections

# A client that says nothing is not waited for any longer.
LONGEST_REQUEST_SEC: Final = 1.0
# So many processes answer at once. A scrape takes seconds if a database does not answer.
MOST_ANSWERING: Final = 16

# The names of the package's own metrics.
OWN: Final = ("reaper_", "jobreaper_")

# What is wrong, in words; nothing is good.
Troubles = Callable[[], list[str]]


class Forking(HTTPServer):
    """Answers each request in a process of its own, so that nothing that takes long, and no
    connection to a database, is in this one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: set[int] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Fork, and answer there."""
        self.service_actions()
        if len(self._answering) >= MOST_ANSWERING:
            self.shutdown_request(request)
            return
        if pid := os.fork():
            self._answering.add(pid)
            self.close_request(request)
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.finish_request(request, client_address)
            self.shutdown_request(request)
        finally:
            os._exit(0)

    def service_actions(self) -> None:
        """See which of these processes have ended."""
        ended = {pid for pid in self._answering if os.waitpid(pid, os.WNOHANG)[0]}
        self._answering -= ended


def listen(host: str, port: int, live: Troubles, ready: Troubles, *, threads: bool) -> HTTPServer:
    """Return a server at this address, which does not answer yet. Without ``threads``, it answers
    in processes: whoever has it calls ``handle_request()`` when a client has connected, and
    ``service_actions()`` when a process has ended.

    Raises:
        OSError: the address cannot be used.
    """
    pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
        "/live": lambda: _answer(live()),
        "/ready": lambda: _answer(ready()),
    }
    if find_spec("prometheus_client") is not None:
        pages["/metrics"] = _metrics if threads else _metrics_of_several

    class Handler(BaseHTTPRequestHandler):
        timeout = LONGEST_REQUEST_SEC

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, body = _no_page(pages) if page is None else page()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a probe comes every few seconds."""

    class Server(ThreadingHTTPServer if threads else Forking):  # type: ignore[misc]
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    server: HTTPServer = Server((host, port), Handler)
    server.timeout = 0
    return server


@contextmanager
def answering(server: HTTPServer | None) -> Iterator[None]:
    """Let ``server`` answer in a thread until the block ends. ``None`` does nothing."""
    if server is None:
        yield
        return
    thread = threading.Thread(target=server.serve_forever, name="jobreaper-probe", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _answer(troubles: list[str]) -> tuple[int, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK
    return status, "application/json", _json(ok=not troubles, troubles=troubles)


def _no_page(pages: dict[str, Any]) -> tuple[int, str, bytes]:
    return HTTPStatus.NOT_FOUND, "application/json", _json(ok=False, pages=sorted(pages))


def _metrics() -> tuple[int, str, bytes]:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    try:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
    finally:
        # The collector may have opened one in this thread, which is about to end.
        connections.close_all()


def _metrics_of_several() -> tuple[int, str, bytes]:
    """Return the metrics of several processes: those of the package, which come from the database,
    and those that prometheus_client collects in its multi-process mode. What this process counts
    itself says nothing about them.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector

    class Own(Collector):
        def collect(self) -> Iterable[Any]:
            return [metric for metric in REGISTRY.collect() if metric.name.startswith(OWN)]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Own())
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)


def _json(**what: Any) -> bytes:
    return json.dumps(what).encode()
