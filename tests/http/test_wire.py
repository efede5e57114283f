"""What comes over the wire: a real server, and bytes that no client of ours would send."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connections

from jobreaper import enqueue, job_handler
from tests.http.conftest import TOKEN

pytestmark = pytest.mark.usefixtures("transactional_db")

Send = Callable[..., int]


class _Server(ThreadedWSGIServer):
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            connections.close_all()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def send(transactional_db: None) -> Iterator[Send]:
    """Send a tick with these headers and this body as they are; return the status of the answer."""
    server = _Server(("127.0.0.1", 0), _Quiet)
    server.daemon_threads = False
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()

    def send(*headers: bytes, body: bytes = b"") -> int:
        lines = [b"POST /api/jobs/tick HTTP/1.1", b"Host: localhost", b"Connection: close"]
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
            client.sendall(b"\r\n".join([*lines, *headers, b"", b""]) + body)
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
        return int(answer.split(b" ", 2)[1])

    yield send
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ran() -> list[Any]:
    """The jobs that were run; one is due."""
    ran: list[Any] = []
    job_handler("mail")(lambda job, lease: ran.append(job.pk))
    enqueue("mail")
    return ran


RIGHT = b"Authorization: Bearer " + TOKEN.encode()
JSON = b"Content-Type: application/json"


def test_the_token_opens_it(send: Send, ran: list[Any]) -> None:
    assert send(RIGHT, JSON, b"Content-Length: 12", body=b'{"limit": 5}') == 200
    assert len(ran) == 1


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x00",
        TOKEN.encode() + b"\x00",
        TOKEN.encode() + b"\x01",
        TOKEN.encode() + b"\xff",
        TOKEN.encode() + "\u200b".encode(),
        "s3cret\u2010and\u2010long".encode(),
        TOKEN.encode("utf-16"),
        b"x" * 60_000,
    ],
)
def test_a_wrong_token_is_refused_whatever_its_bytes(
    token: bytes, send: Send, ran: list[Any]
) -> None:
    assert send(b"Authorization: Bearer " + token) in {400, 401}
    assert ran == []


def test_two_tokens_are_none(send: Send, ran: list[Any]) -> None:
    assert send(b"Authorization: Bearer wrong", RIGHT) == 401
    assert ran == []


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ([b"Content-Length: 2000"], b" " * 2000, 413),
        # It says that there is more than anyone would send, or than is sent.
        ([b"Content-Length: 99999999999999999999"], b" " * 5000, 413),
        ([b"Content-Length: 500"], b'{"limit": 1', 400),
        ([b"Content-Length: 4"], b"\xff\xfe{}", 400),
        ([b"Content-Type: text/plain", b"Content-Length: 1"], b"{", 400),
        ([b"Content-Type: image/png", b"Content-Length: 4"], b"\x89PNG", 400),
    ],
)
def test_a_hostile_body_is_refused_and_runs_nothing(
    headers: list[bytes], body: bytes, status: int, send: Send, ran: list[Any]
) -> None:
    assert send(RIGHT, *headers, body=body) == status
    assert ran == []


@pytest.mark.parametrize("length", [b"-1", b"many", b"1e3", b""])
def test_a_length_that_is_none_is_no_body(length: bytes, send: Send, ran: list[Any]) -> None:
    assert send(RIGHT, b"Content-Length: " + length, body=b"{" * 100) == 200
    assert len(ran) == 1


def test_chunks_are_not_read(send: Send, ran: list[Any]) -> None:
    """WSGI has no word for them; a server that knows them says how long they are together."""
    chunk = b"2710\r\n" + b"{" * 10_000 + b"\r\n"
    assert send(RIGHT, b"Transfer-Encoding: chunked", body=chunk * 100 + b"0\r\n\r\n") == 200
    assert len(ran) == 1
