"""``manage.py work --reload``: the worker ends when code changes, and another one starts.

Django's own way would end the process in the middle of its jobs. Here, the worker is told to stop,
as at a deploy.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from django.utils import autoreload

logger = logging.getLogger("jobreaper.work")

# Django's code for it.
RELOAD: Final = 3


def is_worker() -> bool:
    """Return whether this process is the one that works, and not the one that starts it anew."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def work_again_and_again() -> int:
    """Start this program until it ends for another reason than changed code, and return its exit
    code. Signals are left to it.
    """
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    while True:
        arguments = [sys.executable, *sys.orig_argv[1:]]
        with subprocess.Popen(arguments, env=environment) as process:
            # Ctrl-C reaches the worker by itself.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_, told=process: told.terminate())
            code = process.wait()
        if code != RELOAD:
            return code if code >= 0 else 128 - code


_changed: Final = threading.Event()


def has_changed() -> bool:
    """Return whether code has changed since ``watch()``."""
    return _changed.is_set()


def watch(stop: Callable[[], object]) -> None:
    """Call ``stop`` once code has changed, in a thread that ends with the process."""

    def told(file_path: Path, **_: object) -> bool:
        if not _changed.is_set():
            logger.info("code has changed, so this worker stops: %s", file_path)
            _changed.set()
            stop()
        return True

    autoreload.file_changed.connect(told, weak=False, dispatch_uid="jobreaper.work")
    reloader = autoreload.get_reloader()
    threading.Thread(target=reloader.run_loop, name="jobreaper-reload", daemon=True).start()
    logger.info("this worker watches for changed code")
