"""The ready-made queue: jobs enqueued into ``jobreaper_jobs``, and the worker that runs them."""

from jobreaper.queue.enqueueing import (
    enqueue,
    enqueue_many,
    mark_failure,
    mark_success,
)

__all__ = [
    "enqueue",
    "enqueue_many",
    "mark_failure",
    "mark_success",
]
