"""A backend for ``django.tasks``: code written for it runs on the ready-made queue by a setting::

    TASKS = {"default": {"BACKEND": "jobreaper.backend.JobreaperBackend"}}

Nothing else in the package knows it: it registers itself as one more source of handlers, as Celery
does. On Django 5.2, it is for the package ``django-tasks``.
"""

from jobreaper.backend.backend import JobreaperBackend, JobreaperTask

__all__ = ["JobreaperBackend", "JobreaperTask"]
