"""The interface to logs, metrics and traces.

Core code sends these signals and formats nothing. Every signal is sent with ``send_robust`` after
its statement: if a receiver raises, Django logs it (logger ``django.dispatch``), and the claim,
heartbeat or pass continues.
``sender`` is the job's model class, except for ``pass_finished``, where it is ``PassResult``.

==========================  ====================================================================
signal                      arguments
==========================  ====================================================================
jobs_enqueued               pks (of jobs made by one statement, in the order given)
job_claimed                 lease
run_started                 lease
run_ended                   lease, error (what left the block, ``None`` where nothing did)
job_finished                lease, details
job_retried, job_failed     lease, details (``fail_code``, ``fail_reason``, ``duration_ms`` …)
job_released                lease, details
jobs_claimed                leases (that ``manage.py work`` took with one statement)
jobs_finished               leases (that it finished with one statement)
lease_lost                  lease, reason (``"heartbeat"``, ``"clock"``, ``"deadline"`` or
                            ``"stalled"``), status, epoch
stale_write_rejected        lease, verb, status, epoch
ending_refused              lease, verb, error (of the database, which refuses to write the end of
                            this job of a group; the lease runs out)
heartbeat_failed            alias, table, error, leases (how many were not renewed)
job_reaped                  table, jobs (a batch of ``ReapedJob``)
job_changed_by_hand         table, pk, event, by, reason
change_refused              table, pk, event, by, error (of the database, which refuses to write
                            this job of many)
pause_changed               table, name, paused, by, reason
pass_finished               result (a ``PassResult``), trigger
==========================  ====================================================================

In a transaction of the caller, the ``job_*`` and ``jobs_*`` signals are sent on commit, so a finish
or a reap that is rolled back is never announced. Outside ``atomic()`` with autocommit off, Django
cannot tell when the transaction commits, and they are sent at once. ``stale_write_rejected`` is
always sent at once. So are ``run_started`` and ``run_ended``, in the thread that enters and leaves
a ``with lease`` block.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.dispatch import Signal


@dataclass(frozen=True)
class OwnReceiver:
    """The ``dispatch_uid`` of the package's own receivers, which do not need a signal for each job
    of a batch. It is not a text, because other packages' texts could begin with our name.
    """

    name: str


def wanted_one_by_one(signal: Signal) -> bool:
    """Return whether a signal must be sent for each job of a batch: it has a receiver outside this
    package. At ten thousand jobs a second, sending it takes a fifth of the time.
    """
    return any(not isinstance(key[0], OwnReceiver) for key, *_ in signal.receivers)


jobs_enqueued = Signal()
# These are sent for each job of a fast worker.
job_claimed = Signal(use_caching=True)
run_started = Signal(use_caching=True)
run_ended = Signal(use_caching=True)
job_finished = Signal(use_caching=True)
job_retried = Signal()
job_failed = Signal()
job_released = Signal()
jobs_claimed = Signal()
jobs_finished = Signal()
lease_lost = Signal()
stale_write_rejected = Signal()
ending_refused = Signal()
heartbeat_failed = Signal()
job_reaped = Signal()
job_changed_by_hand = Signal()
change_refused = Signal()
pause_changed = Signal()
pass_finished = Signal()
