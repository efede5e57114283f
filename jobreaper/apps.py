"""The app: registers checks and receivers. No I/O before the first statement is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django.apps import AppConfig
from django.db.models.signals import post_migrate, post_save

# What needs a package that is not required, and the function that connects it.
OPTIONAL = {
    "prometheus_client": ("metrics.prometheus", "register"),
    "opentelemetry.metrics": ("metrics.otel", "connect"),
    "opentelemetry.trace": ("tracing", "connect"),
}


class JobreaperConfig(AppConfig):
    """``INSTALLED_APPS = [..., "jobreaper"]``."""

    name = "jobreaper"
    verbose_name = "Jobreaper"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect what reacts to core code, which knows nothing of it."""
        from jobreaper import checks, installed, logs, signals
        from jobreaper.celery import checks as celery_checks
        from jobreaper.celery import dispatcher

        checks.register()
        celery_checks.register()
        logs.connect()
        post_save.connect(dispatcher.send_on_commit, dispatch_uid="jobreaper.send_on_commit")
        signals.jobs_enqueued.connect(
            dispatcher.send_enqueued, dispatch_uid="jobreaper.send_enqueued"
        )
        post_migrate.connect(installed.render_policies_anew, dispatch_uid="jobreaper.policies")
        post_migrate.connect(installed.create_what_waited, dispatch_uid="jobreaper.functions")
        if _is_installed("django_celery_beat"):
            from jobreaper.celery import periodic

            post_migrate.connect(
                periodic.create_periodic_tasks, dispatch_uid="jobreaper.periodic_tasks"
            )
        for package, (module, connect) in OPTIONAL.items():
            if _is_installed(package):
                getattr(import_module(f"jobreaper.{module}"), connect)()


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # Its parent is missing.
        return False
