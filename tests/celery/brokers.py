"""The brokers of this machine, and Celery apps of a test's own on them."""

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from celery import Celery
from celery._state import get_current_app
from celery.app.trace import build_tracer
from django.conf import settings
from kombu.exceptions import ChannelError

from jobreaper import LeasedTask
from jobreaper.models import Job

BROKERS = ("redis", "rabbitmq")

RABBITMQ = ("127.0.0.1", 5672)


def broker_url(name: str) -> str:
    """Return the URL of a broker; skip the test where the machine has none of that name."""
    if name == "redis":
        return str(settings.REDIS_URL)
    given = os.environ.get("CELERY_BROKER_URL", "")
    if given.startswith(("amqp", "pyamqp")):
        return given
    try:
        socket.create_connection(RABBITMQ, timeout=1).close()
    except OSError:
        pytest.skip("there is no RabbitMQ on this machine")
    return "amqp://guest:guest@{}:{}//".format(*RABBITMQ)


@contextmanager
def celery_app(url: str, queue: Any = None, **options: Any) -> Iterator[Celery]:
    """A Celery app in place of the one before it until the block ends, with a queue of its own
    unless one is named. Tasks that a test declares with it are gone with it.
    """
    if url.startswith("amqp"):
        # A message is in its queue when the send returns, whatever then becomes of the connection.
        options.setdefault("broker_transport_options", {"confirm_publish": True})
    before = get_current_app()
    app = Celery("leased-tasks", broker=url, set_as_current=False)
    app.conf.update(
        # CELERY_BROKER_URL in the environment takes the place of `broker`, and not of these.
        broker_read_url=url,
        broker_write_url=url,
        task_default_queue=queue or f"leased-{uuid.uuid4().hex}",
        worker_hijack_root_logger=False,
        **options,
    )
    app.set_current()
    app.set_default()
    try:
        yield app
    finally:
        assert get_current_app() is app, "apps must end in the opposite order of their beginning"
        before.set_current()
        before.set_default()
        app.close()


class Queue:
    """A queue as the broker has it."""

    def __init__(self, app: Celery, name: str | None = None) -> None:
        self.app = app
        self.name = name or app.conf.task_default_queue

    def take(self) -> list[Any]:
        """Take every message off the queue, in order."""
        with self.app.connection_for_read() as connection:
            queue = self.app.amqp.queues[self.name](connection.default_channel)
            queue.declare()
            return list(iter(lambda: queue.get(no_ack=True), None))

    def purge(self) -> None:
        """Throw every message away, as an operator or a broker without a disk does."""
        with self.app.connection_for_write() as connection:
            self.app.amqp.queues[self.name](connection.default_channel).purge()

    def delete(self) -> None:
        """Remove the queue."""
        with self.app.connection_for_write() as connection, suppress(ChannelError):
            self.app.amqp.queues[self.name](connection.default_channel).delete()


def job_ids(messages: list[Any]) -> list[str]:
    """Return the ids that messages carry."""
    return [str(message.payload[0][0]) for message in messages]


def leased(app: Celery, **options: Any) -> Any:
    """Return a decorator that declares a leased task of this app alone."""
    return app.task(**{"base": LeasedTask, "model": Job, "shared": False, **options})


def declare(app: Celery, function: Callable[..., Any], **options: Any) -> Any:
    """Declare a leased task with any function, a lambda too."""
    # Celery reads the name back as source.
    function.__name__ = "work"
    return leased(app, name=f"tests.{len(app.tasks)}", **options)(function)


def deliver(task: Any, *args: Any) -> None:
    """Run a task as a worker does that has its message."""
    trace: Any = build_tracer(task.name, task, app=task.app)
    trace(str(uuid.uuid4()), args, {}, request={})


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a task's function that raises ``error``."""

    def work(job: Any, lease: Any) -> None:
        raise error

    return work
