"""Connects Celery to core code, which does not know Celery."""

from __future__ import annotations

from importlib import import_module

from celery.signals import worker_process_init, worker_ready, worker_shutdown
from django.db.models.signals import post_migrate, post_save

from jobreaper import conf, housekeeping, presence, signals
from jobreaper.celery import declared, dispatcher, periodic
from jobreaper.queue import handlers
from jobreaper.states import WorkerKind


def connect() -> None:
    """Connect the receivers; called once, at start-up."""
    import_module("jobreaper.celery.checks")
    handlers.add_source(declared.source)
    housekeeping.add_chore(
        housekeeping.Chore("dispatch", _dispatch_interval_sec, dispatcher.dispatch)
    )
    post_save.connect(dispatcher.send_on_commit, dispatch_uid="jobreaper.send_on_commit")
    signals.jobs_enqueued.connect(dispatcher.send_enqueued, dispatch_uid="jobreaper.send_enqueued")
    post_migrate.connect(periodic.create_periodic_tasks, dispatch_uid="jobreaper.periodic_tasks")
    signals.job_reaped.connect(dispatcher.send_taken_back, dispatch_uid="jobreaper.taken_back")
    worker_process_init.connect(_introduce, weak=False, dispatch_uid="jobreaper.presence")
    worker_ready.connect(_serve, weak=False, dispatch_uid="jobreaper.presence")
    worker_shutdown.connect(_leave, weak=False, dispatch_uid="jobreaper.presence")


def _dispatch_interval_sec() -> float | None:
    return conf.settings().dispatch_interval_sec if declared.leased_tasks() else None


def _serve(sender: object, **_: object) -> None:
    presence.serve(WorkerKind.CELERY, getattr(sender, "hostname", None))


def _introduce(sender: object, **_: object) -> None:
    # Older versions of Celery have no sender here.
    presence.introduce(WorkerKind.CELERY, sender if isinstance(sender, str) else None)


def _leave(**_: object) -> None:
    presence.leave()
