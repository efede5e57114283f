"""The Redis queue on the tests' Redis, each test under names of its own."""

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from jobreaper.redisq import events
from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.loading import from_document
from jobreaper.redisq.scripts import Scripts
from tests.redisq.redis_place import redis_place
from tests.redisq.servers import Server, programs

MakeDocument = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def events_only_with_a_database(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A test without the database is a project without one."""
    if "transactional_db" in request.fixturenames:
        yield
        events.recorder.flush()
    else:
        monkeypatch.setattr(events, "is_possible", lambda: False)
        yield


@pytest.fixture
def prefix() -> str:
    """With what the names of everything in this test's Redis begin."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def make_document(prefix: str) -> Iterator[MakeDocument]:
    """A configuration as in a file, under names of this test's own. Sections given to it are laid
    over. What the test leaves in Redis is deleted.
    """
    place = redis_place()

    def make(**sections: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "redis": dict(place),
            "worker": {
                "count": 2,
                "heartbeat_ttl": "5s",
                "queues": {"high": f"{prefix}:high", "low": f"{prefix}:low"},
                "processing_list_pattern": f"{prefix}:worker:%s:processing",
                "heartbeat_key_pattern": f"{prefix}:processing:worker:%s",
                "completed_list": f"{prefix}:completed",
                "dead_letter_list": f"{prefix}:dead_letter",
                "brpoplpush_timeout": "100ms",
            },
            "producer": {"rate_limit_key": f"{prefix}:rate_limit", "rate_limit_per_sec": 0},
            "observability": {"metrics_port": 0},
        }
        for name, values in sections.items():
            document[name] = document.get(name, {}) | values
        return document

    yield make
    with connect(from_document(make())) as client:
        for key in client.scan_iter(f"{prefix}*", count=1000):
            client.delete(key)


@pytest.fixture
def make_config(make_document: MakeDocument) -> Callable[..., Config]:
    """A configuration, read from what `make_document` returns."""
    return lambda **sections: from_document(make_document(**sections))


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    """A configuration for the tests' Redis under names of this test's own."""
    return make_config()


@pytest.fixture
def keys(config: Config) -> Keys:
    """The names of `config`."""
    return Keys.of(config)


@pytest.fixture
def client(config: Config) -> Iterator[redis.Redis]:
    """A client of the tests' Redis, as another program would be."""
    with connect(config) as client:
        yield client


@pytest.fixture
def scripts(client: redis.Redis, keys: Keys, config: Config) -> Scripts:
    """The moves between the lists of `config`."""
    return Scripts(client, keys, ttl=config.worker.heartbeat_ttl)


@contextmanager
def running(program: str) -> Iterator[Server]:
    """A Redis that runs until the block ends."""
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="jobreaper-") as home:
        server = Server(Path(home), program)
        server.start()
        yield server
        server.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis of the test's own, which it may kill."""
    with running(programs()["embedded"]) as server:
        yield server


@pytest.fixture(scope="module", params=sorted(programs()))
def one_of_the_servers(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The embedded Redis, and again that of the machine."""
    with running(programs()[request.param]) as server:
        yield server


@pytest.fixture
def shared_server(one_of_the_servers: Server) -> Server:
    """One of the servers, empty and as it was at its start."""
    with redis.Redis(unix_socket_path=str(one_of_the_servers.socket)) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
    return one_of_the_servers
