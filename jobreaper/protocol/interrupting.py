"""Raising an exception in the middle of a job's function, from another thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jobreaper.exceptions import LeaseLost
from jobreaper.protocol.holding import Holding

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Interruptible:
    """A block in which another thread can raise ``LeaseLost`` once, but never after the block.

    Python raises it between two steps of Python code. A call into C has to return first. Greenlets
    are not interrupted.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._early: type[LeaseLost] | None = None
        self._is_told = False
        # Entered again if the exception arrives just after the lock was taken.
        self._lock = threading.RLock()

    def interrupt(self, kind: type[LeaseLost]) -> None:
        """Raise ``kind`` in the block: now, or as soon as it is entered. This has no effect after
        the block, a second time, or in the block's own thread.
        """
        with self._lock:
            if self._is_told or self._thread == threading.get_ident():
                return
            self._is_told = True
            if self._thread is None:
                self._early = kind
            else:
                _raise_in_thread(ctypes.c_ulong(self._thread), ctypes.py_object(kind))

    def __enter__(self) -> Interruptible:
        with self._lock:
            if self._early is None:
                self._thread = threading.get_ident()
                return self
        raise self._early

    def __exit__(self, *_: object) -> None:
        is_left = False
        while not is_left:
            # An exception that was set for this thread and not raised yet is raised here. It cannot
            # be removed: CPython 3.11 would keep looking for it, which is slow and, in a function
            # that is traced, never ends.
            try:
                with self._lock:
                    may_be_pending, self._is_told = self._is_told, True
                for _step in range(10 if may_be_pending else 0):
                    pass
                is_left = True
            except LeaseLost:
                continue


@contextmanager
def interrupting(holding: Holding) -> Iterator[None]:
    """Raise ``LeaseLost`` in this thread when the lease is lost, but never after the block."""
    thread = Interruptible()
    holding.on_lost = lambda loss: thread.interrupt(type(loss))
    try:
        with thread:
            yield
    finally:
        holding.on_lost = None
