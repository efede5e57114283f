"""The interface of the Redis queue to logs, metrics, traces and events.

Its code sends these signals with ``send_robust`` and formats nothing: if a receiver raises, Django
logs it, and the job continues. ``sender`` is the class that sends. ``job`` is a ``Job``, ``entry``
the bytes that Redis has, ``queue`` the name of a list. Durations are seconds.

====================  ==========================================================================
signal                arguments
====================  ==========================================================================
job_fetched           worker_id, queue, job; in the thread that runs the job, before its handler
run_ended             worker_id, queue, job, error (what the handler raised, or ``None``),
                      duration_sec; in the same thread, before the end is written
job_completed         worker_id, queue, job, duration_sec
job_retried           worker_id, queue, job (as it will be fetched again), error, delay_sec,
                      duration_sec
job_dead_lettered     worker_id, queue (``None``: not known), job (``None``: it could not be
                      read), reason, detail, entry; by a worker, not by the reaper
job_released          worker_id, queue, job (given back unharmed by a worker that stops)
job_lost              worker_id, queue, job; a heartbeat found that the job was taken back
stale_completion      worker_id, queue, job, verb (``"finish"``, ``"fail"`` or ``"release"``):
                      rejected, since the job is no longer in this worker's list
job_moved             reaper, moves: a batch of ``Move``, taken from the lists of dead workers;
                      those with a ``reason`` went to the dead-letter list
breaker_changed       queue, before, state (a ``BreakerState``)
dead_letter_handled   did (``"requeued"`` or ``"discarded"``), letter (a ``DeadLetter``), queue
                      (empty: not known), by: an operator acted on it
redis_failed          worker_id, verb (such as ``"fetch"`` or ``"renew"``), error; it is tried again
worker_stopped        worker_ids; the workers of a process have ended
pass_finished         result (a ``PassResult`` of ``reaper.py``)
====================  ==========================================================================
"""

from __future__ import annotations

from django.dispatch import Signal

# These are sent for each job of a fast worker.
job_fetched = Signal(use_caching=True)
run_ended = Signal(use_caching=True)
job_completed = Signal(use_caching=True)
job_retried = Signal()
job_dead_lettered = Signal()
job_released = Signal()
job_lost = Signal()
stale_completion = Signal()
job_moved = Signal()
breaker_changed = Signal()
dead_letter_handled = Signal()
redis_failed = Signal()
worker_stopped = Signal()
pass_finished = Signal()
