"""Metering: runs, failures and seconds, summed up from the events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.models import Case, Count, FloatField, Func, Q, Sum, TextField, When
from django.db.models.fields.json import KT, KeyTransform
from django.db.models.functions import Cast, Coalesce, TruncDate
from django.db.models.lookups import Exact

from jobreaper.states import ENDED_RUNS, FAILED_RUNS

# As in the view jobreaper_metering: a foreign writer may have written anything there.
_MEASURED_SECONDS = Case(
    When(
        Exact(
            Func(
                KeyTransform("duration_ms", KeyTransform("details", "data")),
                function="jsonb_typeof",
                output_field=TextField(),
            ),
            "number",
        ),
        then=Cast(KT("data__details__duration_ms"), FloatField()) / 1000,
    ),
    default=0.0,
)


class JobEventQuerySet(models.QuerySet[Any]):
    """Sums over the events."""

    def metering(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> models.QuerySet[Any, dict[str, Any]]:
        """Return one dict for each table, org, type and UTC day: the ``runs`` that workers ended,
        the ``failures`` among them, and the ``seconds`` they took. With ``since`` and ``until``, it
        includes only events from ``since`` on and before ``until``, and an index is used.

        A run whose worker was lost has no end that could be measured. The reaper writes its event.
        """
        chosen = self.filter(type__in=ENDED_RUNS)
        if since is not None:
            chosen = chosen.filter(at__gte=since)
        if until is not None:
            chosen = chosen.filter(at__lt=until)
        sums: models.QuerySet[Any, Any] = (
            chosen.values(
                "table",
                day=TruncDate("at", tzinfo=UTC),
                org_id=KT("data__details__org_id"),
                job_type=Coalesce(KT("data__details__type"), KT("data__details__stage")),
            )
            .annotate(
                runs=Count("*"),
                failures=Count("pk", filter=Q(type__in=FAILED_RUNS)),
                seconds=Sum(_MEASURED_SECONDS),
            )
            .order_by("day", "table", "org_id", "job_type")
        )
        return sums
