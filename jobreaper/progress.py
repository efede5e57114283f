"""``TracksProgress``: the columns for what a job's function reports.

Migrations of projects may name this module, so its path stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db import models
from django.utils.translation import gettext_lazy as _

# A table takes what its jobs report if it has all of these, with such types. Another kind of
# ``JSONField`` may store something else than JSON.
PROGRESS_FIELDS: Final = ("progress", "progress_at", "stalls_at")

# Of a longer note, the beginning is kept.
LONGEST_NOTE: Final = 200
# Every program can read such a number from JSON without losing anything.
LARGEST_NUMBER: Final = 2**53


def progress_fields(among: Iterable[models.Field[Any, Any]]) -> frozenset[str]:
    """Return the names of the fields for progress, which only the protocol writes; none if one of
    them is missing.
    """
    types = {field.name: type(field) for field in among}
    kinds = [types.get(name) for name in PROGRESS_FIELDS]
    wanted = [models.JSONField, models.DateTimeField, models.DateTimeField]
    return frozenset(PROGRESS_FIELDS if kinds == wanted else ())


class TracksProgress(models.Model):
    """Adds to a ``LeasedJob`` what ``Lease.progress()`` and a stage's ``stall_after`` need.

    Each column may be NULL, so adding them rewrites nothing. None of them may be in an index, or
    each report would have to write to it.
    """

    progress = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("What the job reported last: done, total and note."),
    )
    progress_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text=_("When it last reported something new.")
    )
    stalls_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("When this attempt has stalled, unless it reports something new."),
    )

    class Meta:
        abstract = True
