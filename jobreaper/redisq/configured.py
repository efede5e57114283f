"""The Redis queue that the project's setting ``REDIS_QUEUE`` names, for what reaps tables too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from jobreaper import conf
from jobreaper.exceptions import ConfigurationError
from jobreaper.identity import local_clock
from jobreaper.redisq.results import PassResult

if TYPE_CHECKING:
    from jobreaper.redisq.reaper import Reaper

# With many other keys in the database, a reap goes on at the next one.
LONGEST_REAP_SEC: Final = 10.0


def reap(*, hold: bool = True) -> PassResult | None:
    """Take jobs back from the dead workers of the configured queue, pass after pass until all keys
    have been looked at, or for ``LONGEST_REAP_SEC``. Returns ``None`` if no queue is configured.
    What goes wrong is among the ``errors``: a Redis that is away must not keep tables from being
    reaped.
    """
    path = conf.settings().redis_queue
    if path is None:
        return None
    # Projects without such a queue need not have what it imports.
    try:
        from redis import RedisError

        from jobreaper.redisq import loading
        from jobreaper.redisq.reaper import Reaper
    except ImportError as error:
        return PassResult(errors=[f"REDIS_QUEUE needs the extra `redisq`: {error}"])
    total = PassResult()
    try:
        reaper = Reaper(loading.load(path))
        with reaper.client:
            _go_round(reaper, total, hold)
    except (ConfigurationError, RedisError) as error:
        total.errors.append(f"the Redis queue of {path}: {error}")
    return total


def _go_round(reaper: Reaper, total: PassResult, hold: bool) -> None:
    began = local_clock()
    # Nobody sets it: the pauses between pages are all that is needed of it.
    stop = threading.Event()
    while True:
        result = reaper.run_pass(hold=hold, stop=stop)
        total.add(result)
        if result.whole or result.held or local_clock() - began > LONGEST_REAP_SEC:
            return
