"""``explain()``: what a person wants to know about one job, in one answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext as _

from jobreaper import conf
from jobreaper.explaining import words
from jobreaper.explaining.attempts import Attempt, attempts_of
from jobreaper.explaining.facts import JobFacts, Surroundings, facts_of, surroundings
from jobreaper.explaining.reasons import Reason, reasons_of
from jobreaper.reaper.results import ReapedJob
from jobreaper.states import Status, Verb, Why
from jobreaper.tables import JobTable, table_of


@dataclass(frozen=True)
class Explanation:
    """Why a job waits, runs or has ended, what happens next (``next_at``: when, if known), its
    attempts, and what it has reported with ``Lease.progress()``, when.
    """

    table: str
    pk: Any
    status: str
    stage: str | None
    reasons: list[Reason]
    next: str
    next_at: datetime | None
    attempts: list[Attempt]
    progress: Any = None
    progress_at: datetime | None = None

    @property
    def headline(self) -> str:
        """The first reason, in words."""
        return self.reasons[0].text

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "table": self.table,
            "job": str(self.pk),
            "status": self.status,
            "stage": self.stage,
            "headline": self.headline,
            "reasons": [
                {
                    "code": reason.code.value,
                    "text": reason.text,
                    "remedy": reason.remedy,
                    "blocks": reason.blocks,
                }
                for reason in self.reasons
            ],
            "next": self.next,
            "next_at": self.next_at.isoformat() if self.next_at else None,
            "attempts": [attempt.as_dict() for attempt in self.attempts],
            "progress": self.progress,
            "progress_at": self.progress_at.isoformat() if self.progress_at else None,
        }

    def __str__(self) -> str:
        lines = [f"{self.table} {self.pk}: {self.status}"]
        for reason in self.reasons:
            lines.append(f"  {reason.text}")
            if reason.remedy:
                lines.append(f"    → {reason.remedy}")
        lines += [_("Next: %(next)s") % {"next": self.next}] if self.next else []
        lines += [_("Attempts:")] if self.attempts else []
        lines += [f"  {in_words(attempt)}" for attempt in self.attempts]
        return "\n".join(lines)


def explain(job: models.Model) -> Explanation:
    """Return why a job of any job table waits, runs or has ended, and what would change that. It
    is read anew; nothing is written.

    Raises:
        UnknownTable: its model is no job table.
        django.core.exceptions.ObjectDoesNotExist: the job is gone.
        django.db.Error: the database does not answer.
    """
    table = table_of(type(job))
    found = facts_of(table, [job.pk])
    if not found:
        raise table.model.DoesNotExist(f"{table.name} has no job {job.pk}")  # type: ignore[attr-defined]
    [facts] = found
    around = surroundings(table, found)
    return _explained(facts, around, attempts_of(table, facts))


def explain_many(table: JobTable, pks: Collection[object]) -> list[Explanation]:
    """Return the same of several jobs of one table, without their attempts, in the order of
    ``pks``.
    """
    found = {job.pk: job for job in facts_of(table, pks)}
    if not found:
        return []
    around = surroundings(table, found.values())
    return [_explained(found[pk], around, []) for pk in pks if pk in found]


def _explained(job: JobFacts, around: Surroundings, attempts: list[Attempt]) -> Explanation:
    reasons = reasons_of(job, around)
    text, at = _next(job, around, reasons)
    return Explanation(
        *(around.table.name, job.pk, job.status, job.stage, reasons, text, at, attempts),
        progress=job.progress,
        progress_at=job.progress_at,
    )


def _next(
    job: JobFacts, around: Surroundings, reasons: list[Reason]
) -> tuple[str, datetime | None]:
    """Return what happens next, and when."""
    if job.status == Status.QUEUED:
        return _next_of_queued(job, reasons)
    if job.status != Status.PROCESSING:
        return (_("Nothing: the job has ended."), None) if job.status in set(Status) else ("", None)
    verdict = around.verdicts.get(job.pk)
    if verdict is None:
        at = job.lease_expires_at
        refusal = around.refusal(Verb.REAP, job)
        if refusal is not None:
            said = _("Passes leave it out until %(at)s, and try it again then.")
            again_at = refusal.next_try_at
            return said % {"at": words.timestamp(again_at)}, again_at
        if at is None or at < job.seen_at:
            return _("Nothing, until the worker ends the job."), None
        said = _("The worker ends the job, or its lease runs out at %(at)s and it is taken back.")
        return said % {"at": words.timestamp(at)}, at
    said = _verdict(verdict, job)
    if around.reaper_is_away:
        return _("As soon as a pass runs: %(verdict)s") % {"verdict": said}, None
    due_at = around.next_pass_at
    named = {"at": words.timestamp(due_at or ""), "verdict": said}
    return _("The pass expected at %(at)s: %(verdict)s") % named, due_at


def _next_of_queued(job: JobFacts, reasons: list[Reason]) -> tuple[str, datetime | None]:
    codes = {reason.code for reason in reasons if reason.blocks}
    if not codes:
        return _("A worker begins it."), None
    if codes == {Why.NOT_DUE}:
        at = job.next_earliest_run_at
        said = _("It is due at %(at)s, and a worker begins it.")
        return said % {"at": words.timestamp(at or "")}, at
    return _("It waits until what is named above has changed."), None


def _verdict(verdict: ReapedJob, job: JobFacts) -> str:
    if verdict.fail_code is not None:
        return _("it fails with the code %(code)s.") % {"code": verdict.fail_code}
    wait = words.duration((verdict.run_again_in_ms or 0) / 1000)
    named = {"attempt": verdict.attempt, "most": job.max_attempts, "wait": wait}
    if conf.settings().policy(job.stage).max_reaps is not None:
        return _("it goes back to the queue, due after %(wait)s.") % named
    said = _("it goes back to the queue after attempt %(attempt)d of %(most)d, due after %(wait)s.")
    return said % named


def in_words(attempt: Attempt) -> str:
    """Return an attempt in one line."""
    return " ".join(_phrases(attempt))


def _phrases(attempt: Attempt) -> Iterator[str]:
    yield f"{attempt.number or '?'}."
    if attempt.began_at is not None:
        yield words.timestamp(attempt.began_at)
    if attempt.waited_from is not None and attempt.began_at is not None:
        waited = words.between(attempt.began_at, attempt.waited_from)
        yield _("(waited %(span)s)") % {"span": waited}
    yield _("on %(worker)s") % {"worker": attempt.worker or _("an unknown worker")}
    if attempt.ended_at is None:
        yield _("– runs")
    elif attempt.began_at is not None:
        yield _("for %(span)s") % {"span": words.between(attempt.ended_at, attempt.began_at)}
    if attempt.silent_from is not None and attempt.ended_at is not None:
        silent = words.between(attempt.ended_at, attempt.silent_from)
        yield _("(silent for the last %(span)s)") % {"span": silent}
    if attempt.outcome is not None:
        yield f"– {attempt.outcome}"
    said = ": ".join(text for text in (attempt.fail_code, attempt.fail_reason) if text)
    if said:
        yield f"– {words.shortened(said)}"
