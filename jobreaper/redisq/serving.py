"""What ``manage.py redisq`` runs: the producer, the workers and the reaper, each in a thread, with
their logs, metrics and traces, until a signal tells them to stop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Any, Final

from jobreaper.redisq import logs
from jobreaper.redisq.config import Config
from jobreaper.redisq.connecting import connect, reach
from jobreaper.redisq.metrics import Metrics
from jobreaper.redisq.producer import Producer
from jobreaper.redisq.reaper import Reaper
from jobreaper.redisq.worker import DRAIN_SEC, Worker

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Service:
    """One process. ``failed`` says after ``run()`` what went wrong, if something did.

    Raises:
        ConfigurationError: a role cannot run as it is configured.
    """

    def __init__(
        self,
        config: Config,
        *,
        produces: bool = True,
        works: bool = True,
        once: bool = False,
        drain_sec: float | None = None,
    ) -> None:
        self.failed: str | None = None
        self._config = config
        self._once = once
        self._client = connect(config)
        self._metrics = Metrics(config)
        self._producer = Producer(config) if produces else None
        drain = DRAIN_SEC if drain_sec is None else drain_sec
        self._worker = Worker(config, drain=drain) if works else None
        self._reaper = Reaper(config) if works else None
        self._stopping = threading.Event()
        # A signal handler must not take a lock, and `Event.set()` does: it writes to a pipe, which
        # the main thread reads.
        self._wakes, self._wake = os.pipe()
        self._left_behind = 0

    def run(self, stream: IO[str]) -> int:
        """Run until SIGTERM or SIGINT, and write log lines to ``stream``. Return how many handlers
        are still at work: the process has to end without them.

        A second signal ends the process at once.

        Raises:
            RedisUnreachable: Redis cannot be reached at the start.
            ConfigurationError: a port or a package is missing.
        """
        with ExitStack() as stack:
            stack.enter_context(self._client)
            stack.enter_context(logs.written(self._config, stream))
            logs.connect()
            self._metrics.connect()
            self._trace(stack)
            reach(self._client, self._config)
            server = self._metrics.serve()
            if server is not None:
                stack.callback(server.shutdown)
            stack.enter_context(self._told_by_signals())
            threads = [self._start(name, run) for name, run in self._parts()]
            os.read(self._wakes, 1)
            self._stop()
            for thread in threads:
                thread.join()
        return self._left_behind

    def _trace(self, stack: ExitStack) -> None:
        try:
            from jobreaper.redisq import tracing
        except ImportError:
            # Without OpenTelemetry's API.
            return
        tracing.connect()
        provider = tracing.install(self._config)
        if provider is not None:
            # Sends the spans that are left.
            stack.callback(provider.shutdown)

    def _parts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        if self._producer is not None:
            yield "producer", partial(self._produce, self._producer)
        if self._worker is not None:
            yield "worker", partial(self._work, self._worker)
        if self._reaper is not None:
            yield "reaper", partial(self._reaper.run, self._stopping)
        yield "samples", partial(self._metrics.sample_until, self._stopping, self._client)

    def _produce(self, producer: Producer) -> None:
        producer.run(once=self._once)
        os.write(self._wake, b"p")

    def _work(self, worker: Worker) -> None:
        self._left_behind = worker.run()

    def _start(self, name: str, run: Callable[[], Any]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                self.failed = f"the {name} ended: {logs.in_words(error)}"
                os.write(self._wake, b"f")

        # Not a daemon: it is waited for.
        thread = threading.Thread(target=guarded, name=f"redisq-{name}")
        thread.start()
        return thread

    def _stop(self) -> None:
        self._stopping.set()
        for part in (self._producer, self._worker):
            if part is not None:
                part.stop()

    @contextmanager
    def _told_by_signals(self) -> Iterator[None]:
        """Let the first signal stop the parts, and the second one kill the process."""
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def stop(*_: object) -> None:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.write(self._wake, b"s")

        for number in SIGNALS:
            signal.signal(number, stop)
        # The system may give a signal to another thread, for example after SIGCONT. Then only this
        # wakes the main thread, which alone runs handlers.
        os.set_blocking(self._wake, False)
        woken_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken_before)
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
            os.close(self._wakes)
            os.close(self._wake)
