"""Changes in the directory, as the system reports them.

A report is only a reason to look: reports can be lost, and the system may refuse to make any. So
the whole directory is scanned again from time to time, whatever was reported.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

# With more paths than these, a scan costs less than keeping them.
MOST_PATHS: Final = 10_000

_REPORTED: Final = [
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


class Watcher(FileSystemEventHandler):
    """Collects the paths below ``directory`` that were changed, as a context manager.

    ``refused`` is why the system does not report any, if it does not: most often it watches as many
    directories as it may already.
    """

    def __init__(self, directory: str) -> None:
        self.refused: OSError | None = None
        self._directory = directory
        self._observer: Any = None
        self._changed = threading.Condition()
        self._paths: set[str] = set()

    def __enter__(self) -> Watcher:
        observer = Observer()
        try:
            observer.schedule(
                self, self._directory, recursive=True, event_filter=_REPORTED, follow_symlink=False
            )
            observer.start()
        except OSError as error:
            self.refused = error
        else:
            self._observer = observer
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Note what has changed; called by watchdog's thread."""
        path = os.fsdecode(event.dest_path or event.src_path)
        with self._changed:
            if len(self._paths) < MOST_PATHS:
                self._paths.add(path)
            else:
                self._paths = {self._directory}
            self._changed.notify_all()

    def wait(self, seconds: float) -> set[str]:
        """Return the paths that were changed since the last call. Wait for some if there are none,
        but not longer than ``seconds``.
        """
        with self._changed:
            if not self._paths:
                self._changed.wait(seconds)
            found, self._paths = self._paths, set()
            return found
