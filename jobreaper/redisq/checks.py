"""A system check of the Redis queue that the setting ``REDIS_QUEUE`` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.core.checks import CheckMessage

from jobreaper import conf
from jobreaper.exceptions import ConfigurationError
from jobreaper.findings import check, warning


@check
def check_redis_queue() -> Iterator[CheckMessage]:
    """Report W027: the Redis queue cannot be used as it is configured. Redis is not asked."""
    path = conf.present()[0].redis_queue
    if path is None:
        return
    if not Path(path).exists():
        yield warning(
            "W027",
            f"REDIS_QUEUE names {path}, which does not exist: the defaults are in force.",
            "Name the file that `manage.py redisq --config` gets.",
        )
    try:
        from jobreaper.redisq import loading
    except ImportError as error:
        yield warning(
            "W027",
            f"REDIS_QUEUE is set, and {error.name} is not installed.",
            "Run `pip install 'jobreaper[redisq]'`.",
        )
        return
    try:
        loading.load(path)
    except ConfigurationError as error:
        yield warning(
            "W027",
            f"The configuration of the Redis queue is wrong:\n{error}",
            f"Correct {path}, or the environment.",
        )
