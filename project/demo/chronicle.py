"""Tells what happens to the jobs, only from the tables and `job_events`."""

import time
from datetime import datetime

from jobreaper.models import JobEvent
from jobreaper.states import EventType
from project.demo.screen import BOLD, GREEN, YELLOW, Screen
from project.media.models import AsrJob, Job, MediaJob


class Chronicle:
    """What was told so far, and the names of the workers in it."""

    def __init__(self, screen: Screen) -> None:
        self._say = screen.say
        self._names: dict[int, str] = {}
        self._strikes: dict[int, tuple[str, float]] = {}
        self._told_events: set[int] = set()
        self._told_claims: set[tuple[MediaJob, int]] = set()

    def introduce(self, name: str, pid: int) -> None:
        """Call the worker process `pid` by `name` from now on."""
        self._names[pid] = name

    def note_strike(self, pid: int, what: str) -> None:
        """Remember that the worker process `pid` was killed or frozen now."""
        self._strikes[pid] = what, time.monotonic()

    def tell_news(self) -> None:
        """Tell what has happened since the last call: events, and claims of jobs that were claimed
        before, which add no event.
        """
        for event in JobEvent.objects.exclude(pk__in=self._told_events).order_by("pk"):
            self._told_events.add(event.pk)
            self._tell_event(event)
        for model in (Job, AsrJob):
            for job in model.objects.running().filter(attempt_count__gt=1):
                if (job, job.lease_epoch) not in self._told_claims:
                    self._told_claims.add((job, job.lease_epoch))
                    attempt = f"attempt {job.attempt_count}, epoch {job.lease_epoch}"
                    self._say(f"{self._name(job.locked_by)} claims {job}: {attempt}.")

    def _tell_event(self, event: JobEvent) -> None:
        details = event.details
        job = f"{details.get('stage')} {event.job_id}"
        worker_id = details.get("locked_by")
        worker = self._name(worker_id)
        match event.type:
            case EventType.JOB_FINISHED:
                took = f"{details['duration_ms'] / 1000:.1f} s"
                self._say(f"{worker} finished {job} in {took}.", GREEN)
            case EventType.JOB_WORKER_LOST:
                self._say(
                    f"NOTICED{self._since_strike(worker_id)}: {details['how']}. "
                    f"{job} is due again.",
                    BOLD,
                )
            case EventType.REAPER_REQUEUED:
                overdue = details["overdue_ms"] / 1000
                due = datetime.fromisoformat(details["next_earliest_run_at"]) - event.at
                self._say(
                    f"THE REAPER{self._since_strike(worker_id)}: {worker}'s lease of {job} ran out "
                    f"{overdue:.1f} s ago. Requeued, due in "
                    f"{due.total_seconds():.1f} s.",
                    BOLD,
                )
            case EventType.JOB_STALE_WRITE_REJECTED:
                holder = details.get("present_locked_by")
                by = f", held by {self._name(holder)}" if holder else ""
                self._say(
                    f"REJECTED: {worker} tried to {details['verb']} {job} under epoch "
                    f"{details['epoch']}; the job is at epoch {details['present_epoch']}{by}.",
                    YELLOW,
                )
            case kind:
                self._say(f"{job}: {kind}{f', {worker}' if worker_id else ''}.")

    def _since_strike(self, worker_id: str | None) -> str:
        if (strike := self._strikes.get(pid_of(worker_id))) is None:
            return ""
        what, when = strike
        return f", {time.monotonic() - when:.1f} s after {self._name(worker_id)} was {what}"

    def _name(self, worker_id: str | None) -> str:
        return self._names.get(pid_of(worker_id), str(worker_id))


def pid_of(worker_id: str | None) -> int:
    """Return the pid in `<hostname>:<pid>:<boot token>`, or 0 if there is none."""
    parts = (worker_id or "").rsplit(":", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0
