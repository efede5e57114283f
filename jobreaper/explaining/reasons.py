"""Why a job waits, stands still or has ended, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobreaper import conf
from jobreaper.explaining import reported, words
from jobreaper.explaining.facts import MOST_NAMED, JobFacts, Surroundings, running_within
from jobreaper.models import Job
from jobreaper.queue.handlers import handlers, stages_elsewhere
from jobreaper.states import FailCode, Status, Verb, Why, WorkerKind
from jobreaper.states import Reason as TakenFor


@dataclass(frozen=True)
class Reason:
    """One reason: a code for programs, a sentence for people, and what would change it. ``blocks``
    is false for a reason that keeps the job from nothing.
    """

    code: Why
    text: str
    remedy: str = ""
    blocks: bool = True


def reasons_of(job: JobFacts, around: Surroundings) -> list[Reason]:
    """Return why the job is where it is, the most telling reason first."""
    found = list(_OF_STATUS.get(job.status, _unknown)(job, around))
    return sorted(found, key=lambda reason: not reason.blocks)


def _queued(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    due_at = job.next_earliest_run_at
    is_due = due_at is None or due_at <= job.seen_at
    if not is_due:
        yield _not_due(job)
    yield from _paused(job, around)
    if around.table.can_be_leased:
        yield from _unhandled(job, around)
        yield from _full(job, around)
    yield from _refused(job, around, Verb.CLAIM)
    yield from _locked(job)
    if is_due:
        yield from _way_to_a_worker(job, around)


def _not_due(job: JobFacts) -> Reason:
    due_at = job.next_earliest_run_at
    named = {
        "at": words.timestamp(due_at or ""),
        "span": words.between(job.seen_at, due_at or ""),
        "attempt": job.attempt_count or 0,
        "code": job.fail_code or _("no code"),
    }
    if job.attempt_count and job.fail_code:
        said = _(
            "It is not due until %(at)s, in %(span)s: it waits after attempt %(attempt)d, which "
            "ended with %(code)s."
        )
    else:
        said = _("It is not due until %(at)s, in %(span)s.")
    return Reason(Why.NOT_DUE, said % named, _("Run it now, by button or manage.py jobs run-now."))


def _paused(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    pause = around.pause_of(job)
    if pause is None:
        return
    said = _("%(name)s was paused by %(by)s at %(at)s.") % {
        "name": pause.name,
        "by": pause.by or _("somebody"),
        "at": words.timestamp(pause.at),
    }
    if pause.reason:
        said += " " + _("Reason given: %(reason)s") % {"reason": pause.reason}
    yield Reason(
        Why.PAUSED,
        said,
        _("Resume it on the Reaper page, or with manage.py resume %(name)s.")
        % {"name": pause.name},
    )


def _unhandled(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    stages = stages_elsewhere(around.table.model)
    if None in stages or job.stage in stages:
        return
    if around.table.model is not Job or job.type in handlers():
        # Who runs the jobs of another table may be anybody.
        return
    yield Reason(
        Why.NO_HANDLER,
        _("Nothing in this project handles the type %(type)s.") % {"type": job.type},
        _("Declare it with @job_handler in an installed app, and restart the workers."),
    )


def _full(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    settings = conf.settings()
    if job.stage in settings.limited_stages:
        yield from _full_of(
            "stage", job.stage or "", settings.stages[job.stage or ""].max_running, around
        )
    if job.queue in settings.queues:
        yield from _full_of("queue", job.queue or "", settings.queues[job.queue or ""], around)


def _full_of(limit: str, name: str, most: int | None, around: Surroundings) -> Iterator[Reason]:
    if most is None:
        return
    keys = running_within(around.table, limit, name, most)
    if len(keys) < most:
        return
    if limit == "stage":
        said = ngettext(
            "Its stage %(name)s is full: %(most)d job may run at once, and %(jobs)s does.",
            "Its stage %(name)s is full: %(most)d jobs may run at once, and %(jobs)s do.",
            most,
        )
    else:
        said = ngettext(
            "Its queue %(name)s is full: %(most)d job may run at once, and %(jobs)s does.",
            "Its queue %(name)s is full: %(most)d jobs may run at once, and %(jobs)s do.",
            most,
        )
    named = ", ".join(keys[:MOST_NAMED]) + ("…" if len(keys) > MOST_NAMED else "")
    yield Reason(
        Why.STAGE_FULL,
        said % {"name": name, "most": most, "jobs": named},
        _("One of them has to end, or its max_running has to grow."),
    )


def _refused(job: JobFacts, around: Surroundings, verb: Verb) -> Iterator[Reason]:
    row = around.refusal(verb, job)
    if row is None:
        return
    said = _(
        "Its row cannot be written, since %(since)s: %(error)s. It was tried %(tries)d times, and "
        "is tried again at %(again)s."
    ) % {
        "since": words.timestamp(row.since),
        "error": words.shortened(row.error),
        "tries": row.tries,
        "again": words.timestamp(row.next_try_at),
    }
    yield Reason(
        Why.REFUSED,
        said,
        _("Correct what refuses it: a constraint, a trigger or a type of your table."),
        blocks=row.next_try_at > job.seen_at,
    )


def _locked(job: JobFacts) -> Iterator[Reason]:
    holder = job.locked
    if holder is None:
        return
    if holder.prepared:
        yield Reason(
            Why.LOCKED,
            _("The prepared transaction %(name)s has locked its row.") % {"name": holder.prepared},
            _("Commit it or roll it back: COMMIT PREPARED, ROLLBACK PREPARED."),
        )
        return
    since = datetime.fromisoformat(holder.since) if holder.since else None
    said = _(
        "Backend %(pid)s (%(who)s) has locked its row for %(span)s; it is %(state)s: %(query)s"
    )
    yield Reason(
        Why.LOCKED,
        said
        % {
            "pid": holder.pid,
            "who": holder.application or holder.user or _("unknown"),
            "span": words.between(job.seen_at, since) if since else _("an unknown time"),
            "state": holder.state or _("hidden from this role"),
            "query": words.statement(holder.query) or "-",
        },
        _("Its transaction has to end: SELECT pg_terminate_backend(%(pid)s) ends it by force.")
        % {"pid": holder.pid},
    )


def _way_to_a_worker(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    """Yield what lies between a due job and the worker that takes it."""
    due_for = words.between(job.seen_at, job.next_earliest_run_at or job.seen_at)
    stages = stages_elsewhere(around.table.model)
    if None in stages or job.stage in stages:
        if around.here(WorkerKind.CELERY) == 0:
            yield Reason(
                Why.NO_WORKER,
                _("No Celery worker is here."),
                _("Start one: celery -A … worker."),
            )
        yield _of_message(job)
    elif around.table.model is Job and around.here(WorkerKind.WORK, WorkerKind.FOREIGN) == 0:
        yield Reason(
            Why.NO_WORKER,
            _("No worker is here that takes jobs of %(table)s.") % {"table": around.table.name},
            _("Start one: manage.py work."),
        )
    elif job.next_earliest_run_at is None:
        said = _("It is due, and a worker takes it when those before it are taken.")
        yield Reason(Why.IN_LINE, said, _("More workers take it sooner."), blocks=False)
    else:
        said = _(
            "It has been due for %(span)s, and a worker takes it when those before it are taken."
        )
        yield Reason(
            Why.IN_LINE, said % {"span": due_for}, _("More workers take it sooner."), blocks=False
        )


def _of_message(job: JobFacts) -> Reason:
    if job.dispatched_at is None:
        return Reason(
            Why.NOT_SENT,
            _("It is due, and has not been sent to Celery yet."),
            _("The dispatcher sends it: jobreaper.dispatch of Celery beat, or manage.py work."),
            blocks=False,
        )
    again_at = job.dispatched_at + timedelta(seconds=conf.settings().dispatch_again_sec)
    said = _("Its message was sent to Celery %(span)s ago, and no worker has begun it.")
    return Reason(
        Why.SENT,
        said % {"span": words.between(job.seen_at, job.dispatched_at)},
        _("Look for a worker that reads its queue; it is sent again at %(at)s.")
        % {"at": words.timestamp(again_at)},
        blocks=False,
    )


def _processing(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    holder = {
        "worker": job.locked_by or _("an unknown worker"),
        "span": words.between(job.seen_at, job.last_seen_at or job.seen_at),
    }
    ends_at = job.lease_expires_at
    if ends_at is not None and ends_at >= job.seen_at:
        yield _under_lease(job, ends_at, holder)
    elif ends_at is not None:
        yield _expired(job, around, {**holder, "ago": words.between(job.seen_at, ends_at)})
    elif around.table.can_be_leased and job.pk not in around.verdicts:
        said = _("It runs without a lease; %(worker)s was last seen %(span)s ago.")
        yield Reason(
            Why.NO_LEASE,
            said % holder,
            _("Only a stage with a ttl is reaped without a lease: set one, or requeue it by hand."),
        )
    elif job.pk in around.verdicts:
        said = _("It has shown no sign of life for %(span)s, longer than its ttl.")
        yield Reason(Why.EXPIRED, said % holder, _remedy_of_reaping(around))
    else:
        said = _("%(worker)s runs it, and was last seen %(span)s ago.")
        yield Reason(Why.RUNNING, said % holder, blocks=False)
    yield from _progress(job)
    if job.pk in around.verdicts or (ends_at is not None and ends_at < job.seen_at):
        yield from _in_the_reapers_way(job, around)
    yield from _refused(job, around, Verb.REAP)
    yield from _locked(job)


def _expired(job: JobFacts, around: Surroundings, named: dict[str, Any]) -> Reason:
    verdict = around.verdicts.get(job.pk)
    if verdict is not None and verdict.reason == TakenFor.STALLED:
        said = _(
            "It stalled %(ago)s ago: it has reported nothing new for the stall_after of its stage, "
            "although %(worker)s was last seen %(span)s ago."
        )
        return Reason(Why.STALLED, said % named, _remedy_of_reaping(around))
    said = _("Its lease ran out %(ago)s ago; %(worker)s was last seen %(span)s ago.")
    return Reason(Why.EXPIRED, said % named, _remedy_of_reaping(around))


def _progress(job: JobFacts) -> Iterator[Reason]:
    """Yield how far a running job is, and when it has stalled."""
    said = []
    if job.progress is not None:
        named = {"far": reported.in_words(job.progress), "span": "?"}
        if job.progress_at is not None:
            named["span"] = words.between(job.seen_at, job.progress_at)
        said.append(_("It has reported %(far)s, %(span)s ago.") % named)
    if job.stalls_at is not None and job.stalls_at >= job.seen_at:
        left = words.between(job.seen_at, job.stalls_at)
        said.append(
            _("It counts as stalled in %(left)s unless it reports something new.") % {"left": left}
        )
    if said:
        yield Reason(Why.PROGRESS, " ".join(said), blocks=False)


def _under_lease(job: JobFacts, ends_at: datetime, holder: dict[str, Any]) -> Reason:
    named = {**holder, "left": words.between(job.seen_at, ends_at)}
    if job.is_late:
        said = _(
            "%(worker)s holds it and has been silent for %(span)s; its lease has %(left)s left."
        )
        remedy = _("If the worker is dead, the job is taken back when the lease has run out.")
        return Reason(Why.SILENT, said % named, remedy)
    said = _("%(worker)s runs it, and was last seen %(span)s ago; its lease has %(left)s left.")
    return Reason(Why.RUNNING, said % named, blocks=False)


def _remedy_of_reaping(around: Surroundings) -> str:
    if around.reaper_is_away:
        return _("A pass has to run: manage.py reap.")
    return _("The next pass takes it back; manage.py reap does so now.")


def _in_the_reapers_way(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    if around.last_pass_at is None:
        said = _("No pass of the reaper has ever run in this database.")
        yield Reason(Why.NO_REAPER, said, _("Run one: manage.py reap --loop, work or Celery beat."))
    elif around.reaper_is_away:
        said = _("The last pass of the reaper was %(span)s ago.")
        span = words.between(around.now, around.last_pass_at)
        remedy = _("Run the reaper: manage.py reap --loop, work or Celery beat.")
        yield Reason(Why.NO_REAPER, said % {"span": span}, remedy)
    if around.held_reason:
        yield Reason(
            Why.HELD,
            _("The last pass was held: %(reason)s.") % {"reason": around.held_reason},
            _("It passes by itself; manage.py reap --no-hold does not wait."),
        )


def _success(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    yield Reason(Why.FINISHED, _ended(job, _("It finished %(span)s ago.")), blocks=False)


def _cancelled(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    said = _ended(job, _("It was cancelled %(span)s ago."))
    yield Reason(Why.CANCELLED, said, _("Requeue it to have it run after all."), blocks=False)


def _failed(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    said = _ended(job, _("It failed %(span)s ago."))
    why = ": ".join(words.shortened(text) for text in (job.fail_code, job.fail_reason) if text)
    if why:
        said = f"{said} {why}"
    remedy = _REMEDIES.get(job.fail_code or "", _("Mend the error, then requeue it."))
    yield Reason(Why.FAILED, said, str(remedy))


def _ended(job: JobFacts, said: str) -> str:
    at = job.finished_at
    return said % {"span": "?" if at is None else words.between(job.seen_at, at)}


def _unknown(job: JobFacts, around: Surroundings) -> Iterator[Reason]:
    said = _("Its status %(status)s is none of jobreaper's.") % {"status": job.status}
    yield Reason(Why.UNKNOWN_STATUS, said, _("Name its words in register(words={…})."))


_OF_STATUS: Final[dict[str, Callable[[JobFacts, Surroundings], Iterator[Reason]]]] = {
    Status.QUEUED: _queued,
    Status.PROCESSING: _processing,
    Status.SUCCESS: _success,
    Status.FAILED: _failed,
    Status.CANCELLED: _cancelled,
}


# What helps after the reaper's own codes.
_REMEDIES: Final[dict[str, Any]] = {
    FailCode.TIMEOUT: gettext_lazy(
        "Its last worker was lost. Find out why, for example in the worker's log or in the "
        "kernel's for lack of memory; then requeue it, which gives it all its attempts."
    ),
    FailCode.POISON: gettext_lazy(
        "It lost every worker that ran it, so it may be what kills them: run it alone, with "
        "more memory, before you requeue it."
    ),
    FailCode.DEADLINE: gettext_lazy(
        "It ran longer than its stage's max_runtime: raise that, or split the job."
    ),
    FailCode.STALLED: gettext_lazy(
        "Its worker was alive, and it reported nothing new for its stage's stall_after. Its last "
        "report says where it hangs."
    ),
    FailCode.WORKER_LOST: gettext_lazy(
        "Its worker died in the middle and no attempt was left: see what killed the worker, "
        "then requeue it."
    ),
}
