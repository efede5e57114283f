"""What is in the directory: files that may become jobs, and those that are skipped, with a reason.

Other programs write, rename and delete files there meanwhile, and whoever may write there may try
to have a file of somebody else's enqueued. So nothing is read through a link that leads out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from jobreaper.exceptions import ConfigurationError
from jobreaper.redisq.config import Producer
from jobreaper.redisq.producer.globs import Globs

# Never the file at the end of a link, and no wait for the other end of a pipe.
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Why(StrEnum):
    """Why a file is skipped."""

    GONE = "it is gone"
    UNREADABLE = "it cannot be read"
    LINKS_OUT = "it is a link that leads out of the directory"
    NO_FILE = "it is no regular file"
    NAME = "its name is not UTF-8"


class Found(NamedTuple):
    """A file: its absolute path without links, its size in bytes, and when it was changed."""

    path: str
    size: int
    mtime_ns: int

    @property
    def version(self) -> str:
        """What differs once the file has been changed."""
        return f"{self.size}:{self.mtime_ns}"


class Skipped(NamedTuple):
    """A path that does not become a job."""

    path: str
    why: Why


class Scanner:
    """Looks at ``producer.scan_dir``.

    Raises:
        ConfigurationError: it is not a directory.
    """

    def __init__(self, config: Producer) -> None:
        self.root = os.path.realpath(config.scan_dir)
        if not os.path.isdir(self.root):
            raise ConfigurationError(
                f"producer.scan_dir (PRODUCER_SCAN_DIR) is not a directory: {self.root!r}"
            )
        self._inside = self.root.rstrip("/") + "/"
        self._include = Globs(config.include_globs)
        self._exclude = Globs(config.exclude_globs)

    def scan(self, top: str | None = None) -> Iterator[Found | Skipped]:
        """Yield all below ``top``, an absolute path, or below the directory itself."""
        pending = [self.root if top is None else top]
        while pending:
            directory = pending.pop()
            try:
                # It may have become a link since its name was read.
                if not self._is_inside(os.path.realpath(directory, strict=True)):
                    yield Skipped(directory, Why.LINKS_OUT)
                    continue
                with os.scandir(directory) as entries:
                    listed = list(entries)
            except OSError as error:
                yield Skipped(directory, _why(error))
                continue
            for entry in listed:
                if _is_directory(entry):
                    pending.append(entry.path)
                elif (found := self.look(entry.path)) is not None:
                    yield found

    def look(self, path: str) -> Found | Skipped | None:
        """Return what is at ``path``, or ``None`` if it is not meant to be a job. A link to a file
        within the directory is that file.
        """
        if not path.startswith(self._inside) or not self._is_meant(path[len(self._inside) :]):
            return None
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                path = os.path.realpath(path, strict=True)
                if not self._is_inside(path):
                    return Skipped(path, Why.LINKS_OUT)
                status = os.lstat(path)
        except OSError as error:
            return Skipped(path, _why(error))
        if stat.S_ISDIR(status.st_mode):
            # It is scanned in its own place.
            return None
        if not stat.S_ISREG(status.st_mode):
            return Skipped(path, Why.NO_FILE)
        if not _is_text(path):
            return Skipped(path, Why.NAME)
        return Found(path, status.st_size, status.st_mtime_ns)

    def open(self, found: Found) -> Found | Skipped:
        """Return the file as it is now, if it can be read."""
        try:
            descriptor = os.open(found.path, _LOOK)
        except OSError as error:
            return Skipped(found.path, _why(error))
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Skipped(found.path, Why.NO_FILE)
        return Found(found.path, status.st_size, status.st_mtime_ns)

    def _is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self._inside)

    def _is_meant(self, relative: str) -> bool:
        return self._include.match(relative) and not self._exclude.match(relative)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_text(path: str) -> bool:
    # Linux takes any bytes for a name, and JSON only characters.
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why(error: OSError) -> Why:
    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    return Why.GONE if gone else Why.UNREADABLE
