"""Several worker processes under one that watches them: ``manage.py work --processes``.

The supervisor forks the workers and does nothing else: it has no thread, and opens a connection
only for a moment, to give back the jobs of a worker that has died. A worker that dies, or ends on
its own, is replaced at once; one that dies again and again is replaced ever more slowly. Signals
are passed on. If the supervisor itself dies, its workers stop.

A worker whose Python code no longer runs, for example because a C function never lets go of the
interpreter, cannot give up its own job. So before it starts a job that has a hard end, it writes
this into shared memory, and the supervisor kills it some seconds after.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import HTTPServer
from selectors import EVENT_READ, DefaultSelector
from typing import Final, NamedTuple, NoReturn

from django.db import connections

from jobreaper.identity import id_of_child, local_clock
from jobreaper.queue.board import Board
from jobreaper.reaper.dead_workers import give_back_everywhere
from jobreaper.states import Reason

logger = logging.getLogger("jobreaper.work")

# A worker that dies sooner than this after its start counts as one that cannot run.
STEADY_SEC: Final = 10.0
FIRST_PAUSE_SEC: Final = 0.5
LONGEST_PAUSE_SEC: Final = 30.0

# After the hard end of a job, a worker has this time to give it up by itself.
HARD_END_GRACE_SEC: Final = 10.0
# After the time in which it had to stop, it has this time to end.
SHUTDOWN_GRACE_SEC: Final = 5.0

# PostgreSQL carries out a claim that a worker has sent, even if the worker dies meanwhile; and a
# row may be locked until the server notices that the worker's transaction is dead.
GIVE_BACK_AGAIN_SEC: Final = 1.0
GIVE_BACK_TRIES: Final = 3

# With this exit code, a worker says that none will ever start.
CANNOT_START: Final = 2

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass
class _Child:
    place: int
    pid: int
    board: Board
    started_at: float
    killed_for: str | None = None
    # Whether it has to end because of the signal, and not because of its job.
    is_stopping: bool = False


class _Dead(NamedTuple):
    """A worker whose leases are given back, and once more ``at`` this time."""

    at: float
    worker: str
    how: str
    reason: Reason
    tries: int


@dataclass
class _Place:
    """One of the workers, whichever process it is: when it starts anew, and how often in a row it
    has died young.
    """

    start_at: float = 0.0
    deaths: int = field(default=0)


class Supervisor:
    """Keeps ``size`` worker processes running until it is told to stop.

    Args:
        size: the number of processes.
        work: called in each of them with its board; its return value is the exit code.
        shutdown_timeout_sec: in what time a worker ends that was told to stop.
        server: answers probes, without a thread of its own.
    """

    def __init__(
        self,
        size: int,
        work: Callable[[Board], int],
        *,
        shutdown_timeout_sec: float,
        server: HTTPServer | None = None,
    ) -> None:
        self._server = server
        self._work = work
        self._shutdown_timeout_sec = shutdown_timeout_sec
        self._places = [_Place() for _ in range(size)]
        self._children: dict[int, _Child] = {}
        self._to_give_back: list[_Dead] = []
        self._told = 0
        self._passed_on = 0
        self._kill_at = math.inf
        self._exit_code = 0
        # The workers notice the supervisor's end by this pipe.
        self._leash, self._held = os.pipe()

    def run(self) -> int:
        """Keep the workers running until a signal says to stop. Return the exit code: 0, or that of
        a worker that did not end well after the signal.
        """
        with self._woken() as wake:
            while True:
                self._bury()
                if self._told > self._passed_on:
                    self._pass_on()
                self._kill_overdue()
                self._give_back_due()
                if not self._told:
                    self._start_due()
                elif not self._children:
                    break
                self._sleep(wake, self._next_moment())
        for dead in self._to_give_back:
            give_back_everywhere(dead.worker, dead.how, dead.reason)
        return self._exit_code

    @contextmanager
    def _woken(self) -> Iterator[socket.socket]:
        """Have signals and the ends of children wake the supervisor, until the block ends."""
        wake, wakes = socket.socketpair()
        wake.setblocking(False)
        wakes.setblocking(False)
        before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGCHLD)}
        for number in _SIGNALS:
            signal.signal(number, self._hear)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        fd_before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield wake
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
            for end in (wake, wakes):
                end.close()

    def why_not_live(self) -> list[str]:
        """Return which workers stand still, for probes. They report it if they are asked to."""
        found = {
            child.pid: trouble
            for child in self._children.values()
            if (trouble := child.board.why_not_live(child.started_at)) is not None
        }
        return [f"worker process {pid} {trouble}" for pid, trouble in found.items()]

    def why_not_ready(self) -> list[str]:
        """Return why not all workers are there, for probes."""
        missing = len(self._places) - len(self._children)
        troubles = ["it was told to stop"] if self._told else []
        return troubles + ([f"{missing} of its workers are not running"] if missing else [])

    def _hear(self, *_: object) -> None:
        self._told += 1

    def _start_due(self) -> None:
        running = {child.place for child in self._children.values()}
        for number, place in enumerate(self._places):
            if number not in running and place.start_at <= local_clock():
                self._start(number)

    def _start(self, place: int) -> None:
        # A child must not share a session with its parent.
        connections.close_all()
        board = Board()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if not pid:
            self._become_worker(board)
        self._children[pid] = _Child(place, pid, board, local_clock())
        logger.info("worker process %d has started", pid)

    def _become_worker(self, board: Board) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            # Ctrl-C at a terminal goes to all processes of the group, and the supervisor passes it
            # on: twice would mean at once.
            os.setpgid(0, 0)
            os.close(self._held)
            if self._server is not None:
                self._server.server_close()
            threading.Thread(target=_stop_if_left, args=[self._leash], daemon=True).start()
            code = self._work(board)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _bury(self) -> None:
        """See which workers have ended, give back the jobs of those that died, and decide when each
        is replaced.
        """
        for pid, child in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            del self._children[pid]
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                self._places[child.place] = _Place()
                continue
            how = child.killed_for or _in_words(code)
            was_told = bool(self._told)
            level = logging.WARNING if was_told else logging.ERROR
            logger.log(level, "worker process %d was lost: %s", pid, how)
            reason = Reason.WORKER_STOPPED if child.is_stopping else Reason.WORKER_LOST
            self._give_back(_Dead(0.0, id_of_child(pid), how, reason, GIVE_BACK_TRIES))
            if code == CANNOT_START:
                self._exit_code, self._told = code, max(self._told, 1)
            # It may not have come so far as to listen to the signal.
            elif was_told and child.killed_for is None and code != -signal.SIGTERM:
                self._exit_code = 1
            self._replace_later(child)

    def _replace_later(self, child: _Child) -> None:
        place = self._places[child.place]
        lived_sec = local_clock() - child.started_at
        place.deaths = place.deaths + 1 if lived_sec < STEADY_SEC else 1
        pause_sec = 0.0
        if place.deaths > 1:
            pause_sec = min(FIRST_PAUSE_SEC * 2.0 ** (place.deaths - 2), LONGEST_PAUSE_SEC)
            logger.warning("it is replaced in %.1f s: %d died young", pause_sec, place.deaths)
        place.start_at = local_clock() + pause_sec

    def _give_back(self, dead: _Dead) -> None:
        errors = give_back_everywhere(dead.worker, dead.how, dead.reason)
        if dead.tries > 1:
            again = local_clock() + GIVE_BACK_AGAIN_SEC
            self._to_give_back.append(dead._replace(at=again, tries=dead.tries - 1))
        elif errors:
            said = "leases of %s could not be given back and will run out: %s"
            logger.error(said, dead.worker, "; ".join(errors))

    def _give_back_due(self) -> None:
        due = [dead for dead in self._to_give_back if dead.at <= local_clock()]
        self._to_give_back = [dead for dead in self._to_give_back if dead not in due]
        for dead in due:
            self._give_back(dead)

    def _pass_on(self) -> None:
        self._passed_on = self._told
        self._kill_at = local_clock() + SHUTDOWN_GRACE_SEC
        if self._told == 1:
            self._kill_at += self._shutdown_timeout_sec
        for child in self._children.values():
            child.is_stopping = child.killed_for is None
            os.kill(child.pid, signal.SIGTERM)

    def _kill_overdue(self) -> None:
        now = local_clock()
        for child in self._children.values():
            if child.killed_for is not None:
                continue
            if child.board.hard_end + HARD_END_GRACE_SEC <= now:
                child.killed_for = "its job did not end within its max_runtime"
                child.is_stopping = False
            elif self._kill_at <= now:
                child.killed_for = "it did not end at shutdown"
            if child.killed_for is not None:
                logger.error("worker process %d is killed: %s", child.pid, child.killed_for)
                os.kill(child.pid, signal.SIGKILL)

    def _sleep(self, wake: socket.socket, until: float) -> None:
        """Wait until there is something to do, and answer a probe."""
        # A hard end may be written at any time: it is read again this often.
        sec = min(max(0.0, until - local_clock()), HARD_END_GRACE_SEC)
        with DefaultSelector() as selector:
            selector.register(wake, EVENT_READ)
            if self._server is not None:
                selector.register(self._server, EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(sec)}
        with suppress(BlockingIOError):
            while wake.recv(4096):
                pass
        if self._server is not None:
            if self._server in ready:
                self._server.handle_request()
            self._server.service_actions()

    def _next_moment(self) -> float:
        alive = [child for child in self._children.values() if child.killed_for is None]
        moments = [child.board.hard_end + HARD_END_GRACE_SEC for child in alive]
        moments += [dead.at for dead in self._to_give_back]
        if self._told:
            moments.append(self._kill_at if alive else math.inf)
        else:
            running = {child.place for child in self._children.values()}
            moments += [p.start_at for n, p in enumerate(self._places) if n not in running]
        return min(moments, default=math.inf)


def _stop_if_left(leash: int) -> None:
    """Stop this worker when its supervisor is gone."""
    os.read(leash, 1)
    logger.error("the supervisor is gone, so this worker stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _in_words(code: int) -> str:
    if code > 0:
        return f"it exited with {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
