"""The runnable host: a Django project that uses jobreaper on tables of its own."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
