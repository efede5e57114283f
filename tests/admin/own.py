"""Job tables of somebody else's, and an admin site that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.contenttypes.models import ContentType
from django.db import connection, models
from django.test import override_settings
from django.test.utils import isolate_apps
from django.urls import clear_url_caches, path

from jobreaper.admin import JobEventAdmin, LeasedJobAdmin
from jobreaper.base import LeasedJob
from jobreaper.models import JobEvent
from jobreaper.tables import adoption

LABEL = "documents"


@contextmanager
def own_jobs(
    *, site: str = "admin", made_by: type[Any] = LeasedJobAdmin, **fields: Any
) -> Iterator[Any]:
    """Yield a model ``Errand(LeasedJob)`` with these fields, its table in the test's transaction,
    which `/admin/` shows in a site of its own while the block runs.
    """
    with isolate_apps("project.documents"):
        meta = type("Meta", (), {"app_label": LABEL, "db_table": "errands"})
        model: Any = type("Errand", (LeasedJob,), {**fields, "Meta": meta, "__module__": __name__})
    with connection.schema_editor() as editor:
        editor.create_model(model)
    apps.all_models[LABEL]["errand"] = model
    apps.clear_cache()
    try:
        with shown_in_site({model: made_by, JobEvent: JobEventAdmin}, site):
            yield model
    finally:
        del apps.all_models[LABEL]["errand"]
        apps.clear_cache()
        adoption._tables.pop(model, None)
        # Those that the test has made are rolled back with it.
        ContentType.objects.clear_cache()


@contextmanager
def shown_in_site(
    admins: dict[type[models.Model], type[Any]], name: str = "admin"
) -> Iterator[Any]:
    """Serve these admins, and nothing else, at `/admin/`."""
    site = admin.AdminSite(name=name)
    for model, made_by in admins.items():
        site.register(model, made_by)
    urls: Any = ModuleType("own_urls")
    urls.urlpatterns = [path("admin/", site.urls)]
    with override_settings(ROOT_URLCONF=urls):
        clear_url_caches()
        yield site
    clear_url_caches()
