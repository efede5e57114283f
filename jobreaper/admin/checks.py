"""The check of the models of ``LeasedJobAdmin``."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.checks import ModelAdminChecks
from django.core.checks import CheckMessage
from django.db import models

from jobreaper.base import PROTOCOL_COLUMNS
from jobreaper.exceptions import UnknownTable
from jobreaper.findings import error
from jobreaper.tables import table_of
from jobreaper.tables.shape import OWN_WORDS


class LeasedJobAdminChecks(ModelAdminChecks):
    """Django's checks, if the pages can show the model."""

    def check(self, admin_obj: Any, **kwargs: Any) -> list[CheckMessage]:
        """Report E008: the model does not have the fields and words of a ``LeasedJob``, or no job
        table.
        """
        model = admin_obj.model
        names = {field.name for field in model._meta.concrete_fields}
        missing = [name for name in PROTOCOL_COLUMNS if name not in names]
        if missing:
            problem = f"has no field {', '.join(missing)}"
        elif why := _why_no_table(model):
            problem = f"has no job table: {why}"
        elif table_of(model).words != OWN_WORDS:
            problem = "has words of its own for the status"
        else:
            return super().check(admin_obj, **kwargs)
        return [
            error(
                "E008",
                f"{model._meta.label} {problem}, so {type(admin_obj).__name__} cannot show it.",
                "Use Django's ModelAdmin for it.",
                type(admin_obj),
            )
        ]


def _why_no_table(model: type[models.Model]) -> str | None:
    try:
        table_of(model)
    except UnknownTable as error:
        return error.why
    return None
