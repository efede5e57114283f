"""Clients of the Redis that the configuration names."""

from __future__ import annotations

import os
from typing import Any, Final, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import EqualJitterBackoff
from redis.connection import (
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.retry import Retry

from jobreaper.exceptions import RedisUnreachable
from jobreaper.redisq.config import Config

# Between the tries of one command, in seconds.
_FIRST_WAIT_SEC: Final = 0.01
_LONGEST_WAIT_SEC: Final = 0.5

# So that one command may wait in Redis while the others of its process do not.
_CONNECTIONS_A_WORKER: Final = 2


def connect(config: Config, *, retries: int | None = None) -> redis.Redis:
    """Return a client, for any number of threads. It connects when it is first used.

    ``retries`` is how often a command is tried again after the connection broke or was silent for
    too long, ``redis.max_retries`` by default. Such a command may have been carried out: use 0 for
    those that must not be carried out twice. A command may wait in Redis for
    ``worker.brpoplpush_timeout``: that much longer than the timeouts of ``redis`` may it be silent.
    """
    named = config.redis
    tries = named.max_retries if retries is None else retries
    pool = BlockingConnectionPool(  # type: ignore[no-untyped-call]
        **_place(named.addr),
        max_connections=max(
            named.pool_size_multiplier * (os.cpu_count() or 1),
            _CONNECTIONS_A_WORKER * config.worker.count + named.min_idle_conns,
        ),
        timeout=named.read_timeout,
        db=named.db,
        username=named.username or None,
        password=named.password.get_secret_value() if named.password else None,
        socket_connect_timeout=named.dial_timeout,
        # redis-py has one timeout for reading and writing.
        socket_timeout=max(named.read_timeout, named.write_timeout)
        + config.worker.brpoplpush_timeout,
        retry=Retry(EqualJitterBackoff(_LONGEST_WAIT_SEC, _FIRST_WAIT_SEC), tries),
        client_name="jobreaper",
    )
    # So that closing the client closes the connections.
    return redis.Redis.from_pool(pool)


def reach(client: redis.Redis, config: Config) -> None:
    """Open ``redis.min_idle_conns`` connections, and at least one.

    Raises:
        RedisUnreachable: the server does not answer, or does not let this client in.
    """
    pool = client.connection_pool
    opened = []
    try:
        client.ping()
        for _ in range(config.redis.min_idle_conns):
            opened.append(pool.get_connection())
    except redis.RedisError as error:
        raise unreachable(config, error) from error
    finally:
        for connection in opened:
            pool.release(connection)


def unreachable(config: Config, error: Exception) -> RedisUnreachable:
    """Return what says to an operator that Redis failed with ``error``."""
    return RedisUnreachable(
        f"Redis at {config.redis.addr}, database {config.redis.db}, cannot be used: {error}"
    )


def _place(addr: str) -> dict[str, Any]:
    if addr.startswith(("/", "unix://")):
        return {
            "connection_class": UnixDomainSocketConnection,
            "path": addr.removeprefix("unix://"),
        }
    parts = urlsplit(addr if "://" in addr else f"redis://{addr}")
    kind = SSLConnection if parts.scheme == "rediss" else Connection
    return {"connection_class": kind, "host": parts.hostname, "port": cast(int, parts.port)}
