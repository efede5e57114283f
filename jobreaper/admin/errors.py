"""Failed jobs by error: how many there are of each, and an example."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.http import urlencode

from jobreaper.admin.filters import ErrorFilter, StageFilter, StatusFilter, order_of_ended
from jobreaper.admin.window import Window
from jobreaper.admin.words import shortened
from jobreaper.states import Status

# The latest failed jobs that are looked at.
LOOKED_AT: Final = 2_000
MOST_GROUPS: Final = 20


class ErrorGroup(NamedTuple):
    """The failed jobs of one code: how many of those looked at, and the last one's reason."""

    code: str
    number: int
    reason: str
    url: str


def wants_groups(request: HttpRequest) -> bool:
    """Return whether a list shows failed jobs, of all errors."""
    chosen = request.GET.get(StatusFilter.parameter_name)
    return chosen == Status.FAILED and ErrorFilter.parameter_name not in request.GET


def error_groups(model_admin: Any, request: HttpRequest) -> list[ErrorGroup]:
    """Return the latest failed jobs by error, the most frequent first."""
    rows = model_admin.get_queryset(request).filter(status=Status.FAILED)
    stage = request.GET.get(StageFilter.parameter_name)
    if stage:
        rows = rows.filter(stage=stage)
    # Without the index, the key has about the same order.
    field = order_of_ended(model_admin.model) or "pk"
    everything = model_admin.in_order_of(request, field).using(rows.db)
    window = Window(everything, field)
    found = window.among(rows, window.end()).order_by(f"-{field}")
    latest = list(found.values_list("fail_code", "fail_reason")[:LOOKED_AT])
    counted = Counter(code or "" for code, _reason in latest)
    reasons: dict[str, str] = {}
    for code, reason in latest:
        reasons.setdefault(code or "", shortened(reason or ""))
    kept = {name: str(value) for name, value in request.GET.items() if name != "p"}
    return [
        ErrorGroup(
            code or "-",
            number,
            reasons[code],
            f"?{urlencode({**kept, ErrorFilter.parameter_name: code})}",
        )
        for code, number in counted.most_common(MOST_GROUPS)
    ]
