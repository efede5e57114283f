"""Reaching Redis, and saying clearly why it cannot be reached."""

import socket
from collections.abc import Callable

import pytest
import redis

from jobreaper.exceptions import RedisUnreachable
from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect, reach
from jobreaper.redisq.loading import from_document


def test_a_client_reaches_its_server_and_keeps_bytes(config: Config, prefix: str) -> None:
    with connect(config) as client:
        reach(client, config)
        client.lpush(f"{prefix}:list", b"\xff\x00")
        assert client.lrange(f"{prefix}:list", 0, -1) == [b"\xff\x00"]


def test_a_command_may_wait_as_long_as_the_configuration_says(
    make_config: Callable[..., Config], prefix: str
) -> None:
    short = {"read_timeout": "10ms", "write_timeout": "10ms"}
    config = make_config(redis=short | {"max_retries": 0}, worker={"brpoplpush_timeout": "2500ms"})
    with connect(config) as client:
        assert client.brpop([f"{prefix}:empty"], timeout=0.1) is None


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        config = from_document({"redis": {"addr": addr, "password": "hunter2", "max_retries": 0}})
        with connect(config) as client, pytest.raises(RedisUnreachable) as caught:
            reach(client, config)
    assert addr in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        addr = f"127.0.0.1:{silent.getsockname()[1]}"
        quick = {"addr": addr, "read_timeout": "50ms", "write_timeout": "50ms", "max_retries": 0}
        config = from_document({"redis": quick, "worker": {"brpoplpush_timeout": "50ms"}})
        with connect(config) as client, pytest.raises(RedisUnreachable, match=addr):
            reach(client, config)


def test_a_refused_password_is_no_reason_to_try_forever(
    make_config: Callable[..., Config], client: redis.Redis, prefix: str
) -> None:
    client.acl_setuser(prefix, enabled=True, passwords=["+right"], categories=["+@all"])
    try:
        config = make_config(redis={"username": prefix, "password": "wrong-one"})
        with connect(config) as refused, pytest.raises(RedisUnreachable) as caught:
            reach(refused, config)
        assert "wrong-one" not in str(caught.value)
        config = make_config(redis={"username": prefix, "password": "right"})
        with connect(config) as let_in:
            reach(let_in, config)
    finally:
        client.acl_deluser(prefix)


@pytest.mark.parametrize(
    ("addr", "expected"),
    [
        ("localhost:6379", ("Connection", "localhost", 6379)),
        ("redis://h:1", ("Connection", "h", 1)),
        ("[::1]:6379", ("Connection", "::1", 6379)),
        ("rediss://h:2", ("SSLConnection", "h", 2)),
        ("/run/redis.sock", ("UnixDomainSocketConnection", "/run/redis.sock", None)),
        ("unix:///run/redis.sock", ("UnixDomainSocketConnection", "/run/redis.sock", None)),
    ],
)
def test_an_address_has_several_forms(addr: str, expected: tuple[str, str, int | None]) -> None:
    with connect(from_document({"redis": {"addr": addr}})) as client:
        pool = client.connection_pool
        kind, where, port = expected
        assert pool.connection_class.__name__ == kind
        assert where in (pool.connection_kwargs.get("host"), pool.connection_kwargs.get("path"))
        assert pool.connection_kwargs.get("port") == port
