"""Log lines of the Redis queue: JSON with a fixed set of keys, and nothing else.

``log()`` refuses every other key, and values that are not short text, so that no job's content can
reach a log by mistake. ``JsonFormatter`` writes the lines of other loggers of the process in the
same form, and puts ``***`` in the place of the configuration's password.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import IO, Any, Final

import redis

from jobreaper.redisq import signals
from jobreaper.redisq.config import Config
from jobreaper.redisq.job import Job
from jobreaper.redisq.keys import Keys
from jobreaper.redisq.moves import Move
from jobreaper.redisq.producer import signals as producer_signals

# docs/redis-queue.md has the same list, and a test compares the two.
KEYS: Final = (
    *("level", "ts", "msg", "trace_id", "span_id", "job_id", "queue", "worker_id"),
    *("request_id", "namespace"),
)
# Those that a line may be given; the others are on every line.
GIVEN: Final = ("trace_id", "span_id", "job_id", "queue", "worker_id", "request_id")

# Of a value, in characters: an id or a name. What is longer is a payload.
LONGEST_VALUE: Final = 255
# Of a message. A path has at most 4,096.
LONGEST_MESSAGE: Final = 5000

LOGGER: Final = "jobreaper.redisq"
_logger: Final = logging.getLogger(LOGGER)


def log(level: int, message: str, **given: str | None) -> None:
    """Log one line. ``given`` are values for ``GIVEN``.

    Raises:
        TypeError: a key is not one of them, or a value is not text.
        ValueError: a value is longer than ``LONGEST_VALUE``.
    """
    if unknown := given.keys() - set(GIVEN):
        raise TypeError(f"a log line has no key {', '.join(sorted(unknown))}")
    for key, value in given.items():
        if not isinstance(value, str | None):
            raise TypeError(f"{key} of a log line must be text, not {type(value).__name__}")
        if value is not None and len(value) > LONGEST_VALUE:
            raise ValueError(f"{key} of a log line is longer than {LONGEST_VALUE} characters")
    if _logger.isEnabledFor(level):
        # Not as the template: a path may contain a percent sign.
        extra = {"redisq": {key: value and _unicode(value) for key, value in given.items()}}
        _logger.log(level, "%s", _unicode(message[:LONGEST_MESSAGE]), extra=extra)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with ``KEYS`` that are known, whatever was logged."""

    def __init__(self, *, namespace: str = "", secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._namespace = namespace
        self._secrets = [secret for secret in secrets if secret]

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            # Its message and its traceback may quote what a job contains.
            message = f"{message} ({record.exc_info[0].__name__})"
        line: dict[str, Any] = {
            "level": record.levelname.lower(),
            "ts": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "msg": message,
            **getattr(record, "redisq", {}),
            "namespace": self._namespace,
        }
        return json.dumps({key: self._masked(line[key]) for key in KEYS if line.get(key)})

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


@contextmanager
def written(config: Config, stream: IO[str]) -> Iterator[None]:
    """Write the lines of this process to ``stream`` during the block: those of the Redis queue,
    from ``observability.log_level``, and those of others where nothing was set up for them.
    """
    password = config.redis.password
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonFormatter(
            namespace=namespace(config), secrets=[password.get_secret_value()] if password else []
        )
    )
    root, before = logging.getLogger(), (_logger.level, _logger.propagate)
    loggers = [_logger] if root.handlers else [_logger, root]
    for each in loggers:
        each.addHandler(handler)
    _logger.setLevel(config.observability.log_level.upper())
    _logger.propagate = False
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)
        _logger.setLevel(before[0])
        _logger.propagate = before[1]


def namespace(config: Config) -> str:
    """Return the Kubernetes namespace that ``POD_NAMESPACE`` names, or else the one of the keys in
    Redis, such as ``jobqueue``.
    """
    return os.environ.get("POD_NAMESPACE") or Keys.of(config).named("").rstrip(":")


def connect() -> None:
    """Subscribe to the signals of the queue and of the producer."""
    for signal, receiver in (
        (signals.job_fetched, partial(_about_job, DEBUG, "fetched")),
        (signals.job_completed, _completed),
        (signals.job_retried, _retried),
        (signals.job_dead_lettered, _dead_lettered),
        (signals.job_released, partial(_about_job, INFO, "given back, as the worker stops")),
        (signals.job_lost, partial(_about_job, WARNING, "lost: another worker may have it")),
        (signals.stale_completion, _stale),
        (signals.job_moved, _moved),
        (signals.breaker_changed, _breaker_changed),
        (signals.redis_failed, _redis_failed),
        (signals.pass_finished, _pass_finished),
        (producer_signals.jobs_pushed, _pushed),
        (producer_signals.file_skipped, _skipped),
        (producer_signals.progressed, _progressed),
        (producer_signals.watch_refused, _watch_refused),
        (producer_signals.redis_failed, _redis_failed),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"{__name__}.{id(signal)}")


def of_job(job: Job | None, **others: str | None) -> dict[str, str | None]:
    """Return what a line says about a job. Foreign programs chose its ids, so they are cut."""
    known = dict(others)
    if job is not None:
        request = job.extra.get("request_id")
        known |= {
            "job_id": job.id,
            "trace_id": job.trace_id,
            "span_id": job.span_id,
            "request_id": request if isinstance(request, str) else None,
        }
    return {key: value and value[:LONGEST_VALUE] for key, value in known.items()}


def in_words(error: BaseException) -> str:
    """Return what may be logged of an error. The message of any but Redis's may quote a job."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, redis.RedisError | OSError) else name


def _unicode(text: str) -> str:
    """Return text that can be written: a file's name may contain bytes that are no characters."""
    return text.encode(errors="backslashreplace").decode()


def _about_job(
    level: int, message: str, /, *, job: Job, queue: str, worker_id: str, **_: Any
) -> None:
    log(level, message, **of_job(job, queue=queue, worker_id=worker_id))


def _completed(duration_sec: float, **about: Any) -> None:
    _about_job(INFO, f"completed in {duration_sec * 1000:.0f} ms", **about)


def _retried(error: BaseException, delay_sec: float, **about: Any) -> None:
    again = f"tried again in {delay_sec * 1000:.0f} ms"
    _about_job(WARNING, f"failed ({in_words(error)}), {again}", **about)


def _dead_lettered(
    job: Job | None, reason: str, queue: str | None, worker_id: str | None, **_: Any
) -> None:
    log(ERROR, f"dead letter: {reason}", **of_job(job, queue=queue, worker_id=worker_id))


def _stale(verb: str, **about: Any) -> None:
    _about_job(WARNING, f"{verb} rejected: the job is no longer this worker's", **about)


def _moved(moves: Sequence[Move], **_: Any) -> None:
    """Log one line for each dead worker, and one at level DEBUG for each job: a list may have
    100,000.
    """
    for worker_id in dict.fromkeys(move.worker_id for move in moves):
        count = sum(move.worker_id == worker_id for move in moves)
        log(
            WARNING,
            f"taken back from a worker without heartbeat: {count}",
            worker_id=worker_id[:LONGEST_VALUE],
        )
    for move in moves if _logger.isEnabledFor(DEBUG) else ():
        message = f"taken back: {move.reason or 'queued again'}"
        log(DEBUG, message, **of_job(move.job, queue=move.queue, worker_id=move.worker_id))


def _breaker_changed(queue: str, before: Any, state: Any, **_: Any) -> None:
    message = f"circuit breaker: {_state(before)} to {_state(state)}"
    log(WARNING, message, queue=queue[:LONGEST_VALUE])


def _state(state: Any) -> str:
    return str(state.name).lower().replace("_", "-")


def _redis_failed(verb: str, error: Exception, worker_id: str | None = None, **_: Any) -> None:
    log(WARNING, f"Redis failed: {verb}: {in_words(error)}", worker_id=worker_id)


def _pass_finished(result: Any, **_: Any) -> None:
    level = ERROR if result.errors else INFO if result.requeued or result.dead_lettered else DEBUG
    message = (
        f"reaper: {result.requeued} queued again, {result.dead_lettered} dead letters, "
        f"{len(result.errors)} errors in {result.duration_ms:.0f} ms"
    )
    if result.held_reason:
        message = f"reaper: held, {result.held_reason}"
    log(level, message)


def _pushed(jobs: Sequence[Job], **_: Any) -> None:
    for job in jobs if _logger.isEnabledFor(DEBUG) else ():
        log(DEBUG, "enqueued", **of_job(job, queue=job.origin_queue))


def _skipped(path: str, why: str, **_: Any) -> None:
    log(WARNING, f"skipped, as {why}: {path}")


def _progressed(tally: Any, done: bool, **_: Any) -> None:
    far = "scanned" if done else "scanning"
    counts = f"{tally.found:,} found, {tally.pushed:,} enqueued, {tally.skipped:,} skipped"
    log(INFO, f"{far}: {counts}")


def _watch_refused(error: OSError, **_: Any) -> None:
    log(WARNING, f"changes are not reported, so the directory is scanned often: {in_words(error)}")
