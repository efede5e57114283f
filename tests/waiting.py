"""Waiting for a condition, in place of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], timeout_sec: float = 20, every_sec: float = 0.01) -> T:
    """Return the first true answer of `condition`."""
    deadline = time.monotonic() + timeout_sec
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_sec:g} s"
        time.sleep(every_sec)
    return answer
