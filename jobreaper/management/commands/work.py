"""``manage.py work``: run due jobs of the ready-made table in this process."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import HTTPServer
from typing import Any, Final

from django.core.management.base import CommandError

from jobreaper.housekeeping import kept_house
from jobreaper.identity import end_process
from jobreaper.management import reloading
from jobreaper.management.options import (
    BAD_USAGE,
    CheckedCommand,
    add_table_option,
    address,
    at_least_one,
    duration,
    name,
    seconds,
    size,
    table_named,
)
from jobreaper.management.probe import Troubles, answering, listen
from jobreaper.management.terminal import shown
from jobreaper.presence import served, stop_soon
from jobreaper.queue.board import Board, reporting
from jobreaper.queue.handlers import can_find
from jobreaper.queue.supervisor import Supervisor
from jobreaper.queue.wear import Wear
from jobreaper.queue.worker import (
    DEFAULT_ASYNC_CONCURRENCY,
    DEFAULT_BATCH,
    DEFAULT_POLL_SEC,
    DEFAULT_SHUTDOWN_SEC,
    Worker,
)
from jobreaper.states import WorkerKind

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Command(CheckedCommand):
    """Parses the arguments, works until told to stop, prints what was done."""

    help = (
        "Run due jobs by their handlers until SIGTERM or Ctrl-C: jobs that run then have some time "
        "to end, the others go back to the queue."
    )
    # Handlers that do not end, and that the process must not wait for.
    _hanging = 0

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command as a process, and end it even if a handler does not."""
        try:
            super().run_from_argv(argv)
        except SystemExit as ended:
            if self._hanging:
                end_process(ended)
            raise
        if self._hanging:
            end_process(None)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--once", action="store_true", help="run what is due, then exit")
        parser.add_argument(
            "--threads",
            "--concurrency",
            type=at_least_one,
            default=1,
            dest="concurrency",
            metavar="N",
            help="threads that run handlers, in each process (default: 1)",
        )
        parser.add_argument(
            "--processes",
            type=at_least_one,
            default=1,
            metavar="N",
            help="processes that work, under one that replaces them when they die (default: 1)",
        )
        parser.add_argument(
            "--max-jobs",
            type=at_least_one,
            metavar="N",
            help="end a process after it has run N jobs",
        )
        parser.add_argument(
            "--max-memory",
            type=size,
            metavar="SIZE",
            help="end a process, between two jobs, that holds more memory than this, such as 512M",
        )
        parser.add_argument(
            "--reload", action="store_true", help="start anew when code changes, in development"
        )
        parser.add_argument(
            "--health",
            type=address,
            metavar="HOST:PORT",
            help="answer the probes /live and /ready, and /metrics, such as at 0.0.0.0:8001",
        )
        add_table_option(parser)
        _add_choices(parser)
        _add_rarer_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Work, in this process or in several."""
        for option in ("once", "reload"):
            if options[option] and options["processes"] > 1:
                said = f"--{option} works with one process only: leave out --processes"
                raise CommandError(said, returncode=BAD_USAGE)
        worker = self._worker(options)
        unknown = set(options["types"] or ()) - set(worker.handlers)
        if unknown or not (worker.handlers or can_find()):
            missing = ", ".join(sorted(unknown)) or "any type"
            raise CommandError(f"there is no handler for {missing}", returncode=BAD_USAGE)
        if options["reload"] and not reloading.is_worker():
            sys.exit(reloading.work_again_and_again())
        runs = ", ".join(sorted(worker.handlers))
        self.stderr.write(f"running {runs}")
        # Imported objects are permanent. Searching them for garbage every few thousand jobs would
        # take a tenth of the process's time.
        gc.freeze()
        try:
            if options["processes"] > 1:
                self._supervise(options, runs)
                return
            live, ready = worker.why_not_live, worker.why_not_ready
            with answering(self._server(options, live, ready, threads=True)):
                self._work(worker, options, runs)
        finally:
            # The caller of call_command() continues.
            gc.unfreeze()

    def _worker(self, options: dict[str, Any], board: Board | None = None) -> Worker:
        """Return a worker; one with a board is one of several processes."""

        def tell(hard_end: float) -> None:
            if board is not None:
                board.hard_end = hard_end

        return Worker(
            types=options["types"],
            stages=options["stages"],
            queues=options["queues"],
            model=table_named(options["table"]).model,
            concurrency=options["concurrency"],
            async_concurrency=options["async_concurrency"],
            batch=options["batch"],
            poll_sec=options["poll"],
            listen=options["listen"],
            shutdown_sec=options["shutdown_timeout"],
            interrupts=options["interrupts"],
            wear=Wear(options["max_jobs"], options["max_memory"]),
            replaceable=board is not None,
            tell_hard_end=tell if board is not None else None,
        )

    def _supervise(self, options: dict[str, Any], runs: str) -> None:
        def work(board: Board) -> int:
            # The process exits afterwards without waiting for handlers that do not end.
            try:
                self._work(self._worker(options, board), options, runs, board)
            except CommandError as error:
                self.stderr.write(self.style.ERROR(str(error)))
                return error.returncode
            return 0

        def why_not_live() -> list[str]:
            return supervisor.why_not_live()

        def why_not_ready() -> list[str]:
            return supervisor.why_not_ready()

        server = self._server(options, why_not_live, why_not_ready, threads=False)
        supervisor = Supervisor(
            options["processes"],
            work,
            shutdown_timeout_sec=options["shutdown_timeout"],
            server=server,
        )
        if code := supervisor.run():
            raise CommandError("a worker process did not end well", returncode=code)

    def _server(
        self, options: dict[str, Any], live: Troubles, ready: Troubles, *, threads: bool
    ) -> HTTPServer | None:
        if options["health"] is None:
            return None
        host, port = options["health"]
        try:
            return listen(host, port, live, ready, threads=threads)
        except OSError as error:
            said = f"--health cannot listen at {host}:{port}: {error.strerror or error}"
            raise CommandError(said, returncode=BAD_USAGE) from error

    def _work(
        self, worker: Worker, options: dict[str, Any], runs: str, board: Board | None = None
    ) -> None:
        with ExitStack() as stack:
            stack.enter_context(_told_by_signals(worker))
            if not options["once"]:
                stack.enter_context(served(WorkerKind.WORK, runs))
                if options["housekeeping"]:
                    stack.enter_context(kept_house())
            if options["reload"]:
                reloading.watch(worker.stop)
            if board is None:
                stack.enter_context(shown(worker))
            elif options["health"] is not None:
                stack.enter_context(reporting(board, worker.why_not_live))
            tally = worker.run(once=options["once"])
        self._hanging = worker.hanging
        self.stdout.write(
            f"{tally.succeeded:,} succeeded, {tally.failed:,} failed, "
            f"{tally.released:,} given back, {tally.lost:,} lost"
        )
        if options["reload"] and reloading.has_changed():
            sys.exit(reloading.RELOAD)
        if worker.left_behind:
            raise CommandError(
                f"{worker.left_behind:,} could not be ended or given back; their leases run out"
            )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say which jobs to run."""
    choices = {
        "--type": ("T", "type", "all that have a handler"),
        "--stage": ("S", "stage", "all"),
        "--queue": ("Q", "queue", "all"),
    }
    for option, (metavar, what, default) in choices.items():
        parser.add_argument(
            option,
            type=name,
            action="append",
            dest=f"{what}s",
            metavar=metavar,
            help=f"only this {what}; may be given several times (default: {default})",
        )


def _add_rarer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--async-concurrency",
        type=at_least_one,
        default=DEFAULT_ASYNC_CONCURRENCY,
        metavar="N",
        help="async def handlers that run at once in the event loop of a process "
        f"(default: {DEFAULT_ASYNC_CONCURRENCY})",
    )
    parser.add_argument(
        "--batch",
        type=at_least_one,
        default=DEFAULT_BATCH,
        metavar="N",
        help=f"jobs a claim, at most (default: {DEFAULT_BATCH}; slow jobs are claimed singly)",
    )
    parser.add_argument(
        "--poll",
        type=seconds,
        default=DEFAULT_POLL_SEC,
        metavar="SEC",
        help=f"how often to look for jobs when idle (default: {DEFAULT_POLL_SEC:g})",
    )
    parser.add_argument(
        "--no-listen",
        action="store_false",
        dest="listen",
        help="do not LISTEN, as through pgbouncer in transaction mode",
    )
    parser.add_argument(
        "--no-housekeeping",
        action="store_false",
        dest="housekeeping",
        help="do not reap, prune, make the jobs of schedules or send jobs to Celery",
    )
    _add_ends(parser)


def _add_ends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shutdown-timeout",
        type=duration,
        default=DEFAULT_SHUTDOWN_SEC,
        metavar="SEC",
        help="how long running jobs may take to end after SIGTERM, before they are interrupted "
        f"and go back to the queue (default: {DEFAULT_SHUTDOWN_SEC:g})",
    )
    parser.add_argument(
        "--no-interrupt",
        action="store_false",
        dest="interrupts",
        help="never raise an exception in the middle of a handler",
    )


@contextmanager
def _told_by_signals(worker: Worker) -> Iterator[None]:
    """Let the first signal stop ``worker``, the second one at once, and the third one kill it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(*_: object) -> None:
        _handle(stop_at_once)
        stop_soon()
        worker.stop()

    def stop_at_once(*_: object) -> None:
        _handle(signal.SIG_DFL)
        worker.stop(at_once=True)

    _handle(stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _handle(handler: Any) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)
