"""The app: registers checks and receivers. It does no I/O until the first statement is sent."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

# Modules of system checks, which register themselves.
CHECKS = (
    "checks",
    "model_checks",
    "table_checks",
    "replication_checks",
    "presence.checks",
    "redisq.checks",
)

# What needs packages that may be missing, and the module whose connect() is called with them.
OPTIONAL = (
    (("celery",), "celery.receivers"),
    (("django.tasks",), "backend.running"),
    (("django_tasks",), "backend.running"),
    (("prometheus_client",), "metrics.prometheus"),
    (("opentelemetry.metrics",), "metrics.otel"),
    (("opentelemetry.trace",), "tracing"),
    (("opentelemetry.trace", "celery"), "tracing.messages"),
)


class JobreaperConfig(AppConfig):
    """``INSTALLED_APPS = [..., "jobreaper"]``."""

    name = "jobreaper"
    verbose_name = "Jobreaper"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the modules that react to core code, which does not know them."""
        from jobreaper import logs, presence
        from jobreaper.db import borrowed, write_as_read
        from jobreaper.redisq import events
        from jobreaper.schema import migrating

        borrowed.connect()
        connection_created.connect(write_as_read, dispatch_uid="jobreaper.times")
        logs.connect()
        presence.connect()
        events.connect()
        post_migrate.connect(migrating.render_package_anew, dispatch_uid="jobreaper.package")
        post_migrate.connect(migrating.create_what_waited, dispatch_uid="jobreaper.functions")
        for module in CHECKS:
            import_module(f"jobreaper.{module}")
        for packages, module in OPTIONAL:
            if all(map(_is_installed, packages)):
                import_module(f"jobreaper.{module}").connect()


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # Its parent is missing.
        return False
