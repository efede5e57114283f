"""Nothing but a test's own receivers listens, and they are gone after it."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.dispatch import Signal

from jobreaper.redisq import signals
from jobreaper.redisq.producer import signals as producer_signals


@contextmanager
def own_receivers() -> Iterator[None]:
    """Let nobody listen in the block but those that are connected in it."""
    found = [
        each
        for module in (signals, producer_signals)
        for each in vars(module).values()
        if isinstance(each, Signal)
    ]
    before = [each.receivers for each in found]
    for each in found:
        each.receivers = []
        each.sender_receivers_cache.clear()
    try:
        yield
    finally:
        for each, receivers in zip(found, before, strict=True):
            each.receivers = receivers
            each.sender_receivers_cache.clear()
