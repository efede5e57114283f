"""``manage.py work``: a worker process for the media tables."""

import signal
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand

from project.media import worker


class Command(BaseCommand):
    """Runs a worker until it is told to stop."""

    help = "Run media jobs until SIGTERM or Ctrl-C; the job in hand is then released."

    def handle(self, **options: Any) -> None:
        """Work."""
        stop = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        worker.run_until(stop)
