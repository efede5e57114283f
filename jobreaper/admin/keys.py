"""Keys of jobs as text, in events and in URLs."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin.utils import quote
from django.db import Error, models
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from jobreaper.tables import JobTable
from jobreaper.tables.keys import key_as_text, key_of_text

# Django's name for the filters of a list, in the URL of a page that was opened from the list.
FILTERS: Final = "_changelist_filters"


def key_of(field: models.Field[Any, Any], text: str) -> Any:
    """Return the key that a form or a URL has as text.

    Raises:
        ValidationError, ValueError, TypeError: it is none.
    """
    key = field.to_python(text)
    field.get_prep_value(key)
    if "\x00" in text:
        raise ValueError("PostgreSQL stores no NUL")
    return key


def key_in_events(table: JobTable, pk: object) -> str:
    """Return a job's key as in its events: as PostgreSQL writes it, not as Python does."""
    return key_as_text(table, table.prepare_pk(pk))


def key_of_event(table: JobTable, job_id: str) -> Any:
    """Return the Python value of the key that an event names, or ``None`` if it is no key of the
    table.
    """
    if not table.converts_keys:
        return job_id
    try:
        return key_of_text(table, job_id)
    except Error:
        return None


def page_url(model: type[models.Model], pk: object, site: str) -> str:
    """Return the URL of a row's page in the admin site with this name."""
    name = f"{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(f"admin:{name}", args=[quote(str(pk))], current_app=site)


def list_filters(request: HttpRequest) -> str:
    """Return the filters of the list from which a job's page was opened, as in its URL."""
    return request.POST.get(FILTERS) or request.GET.get(FILTERS) or ""


def with_list_filters(url: str, filters: str) -> str:
    """Return the URL of a page with the filters of the list to which it leads back."""
    return f"{url}?{urlencode({FILTERS: filters})}" if filters else url
