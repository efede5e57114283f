"""A job that does nothing, and imports nothing: RQ imports it for each job anew."""

from typing import Any


def noop(*_: Any) -> None:
    """What the queue itself costs."""
