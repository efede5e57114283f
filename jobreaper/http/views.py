"""The tick and the health."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.db import Error, connections, transaction
from django.http import HttpRequest, JsonResponse
from django.http.multipartparser import MultiPartParserError
from django.http.request import UnreadablePostError
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import csrf_exempt

from jobreaper import conf, sql
from jobreaper.db import connection_for, fetch, in_words
from jobreaper.exceptions import JobreaperError
from jobreaper.http.access import Refused, check_access
from jobreaper.queue.runs import run_due
from jobreaper.reaper import reap
from jobreaper.schedule import Scheduler
from jobreaper.states import Trigger
from jobreaper.tables import by_alias, hidden, job_tables

logger = logging.getLogger(__name__)

DEFAULT_LIMIT: Final = 10
MOST_JOBS: Final = 1000
# Less than the half minute after which cron services and proxies give up.
DEFAULT_BUDGET_SEC: Final = 20.0
LONGEST_BUDGET_SEC: Final = 900.0

# A body needs no more than {"limit": 10, "budget_sec": 20}.
LONGEST_BODY: Final = 1024

# A button in a page for staff sends only its CSRF token.
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
CSRF_FIELD: Final = "csrfmiddlewaretoken"

# The exceptions that Django raises for a form that is broken, cut off or too large.
UNREADABLE: Final = (BadRequest, MultiPartParserError, SuspiciousOperation, UnreadablePostError)

# After this many missing passes, the reaper counts as dead, not late.
MISSED_PASSES: Final = 3

_scheduler: Final = Scheduler()

View = Callable[[HttpRequest], JsonResponse]


# Anybody may ask, and the text of an error names hosts, roles, tables and values of settings.
UNSAID: Final = "this could not be found out; the log says why"


def _endpoint(
    *methods: str, admit: Callable[[HttpRequest], object] | None = None
) -> Callable[[View], View]:
    """Return a decorator for a view that always answers in JSON and accepts only these methods. It
    runs outside the request's transaction, because others must see at once what it claims.

    ``admit`` raises ``Refused`` for clients without access. Only clients with access are told about
    errors.
    """

    def decorate(view: View) -> View:
        @csrf_exempt
        @login_not_required
        @wraps(view)
        def endpoint(request: HttpRequest) -> JsonResponse:
            if request.method not in methods:
                answer = _error(405, f"use {methods[0]}")
                answer["Allow"] = ", ".join(methods)
                return answer
            is_admitted = False
            try:
                if admit is not None:
                    admit(request)
                    is_admitted = True
                answer = view(request)
            except Refused as refused:
                answer = _error(refused.status, refused.error)
                if refused.status == 401:
                    answer["WWW-Authenticate"] = "Bearer"
            except UNREADABLE as error:
                answer = _error(400, f"the request could not be read: {error}")
            except (Error, JobreaperError) as error:
                said = _log(request, error)
                answer = _error(503, said if is_admitted else UNSAID)
            # "no-store" alone does not prevent Django's own cache from storing it.
            add_never_cache_headers(answer)
            return answer

        for alias in connections:
            transaction.non_atomic_requests(using=alias)(endpoint)
        return endpoint

    return decorate


def _log(request: HttpRequest, error: Exception) -> str:
    """Log what went wrong, and return it in words."""
    said = in_words(error)
    logger.warning("%s failed: %s", request.path, said)
    return said


def _error(status: int, error: str) -> JsonResponse:
    return JsonResponse({"ok": False, "error": error}, status=status)


@_endpoint("POST", admit=check_access)
def tick(request: HttpRequest) -> JsonResponse:
    """Reap, make the jobs of schedules, then run at most ``limit`` due jobs, and start none after
    ``budget_sec`` seconds. A JSON body can contain both. See docs/queue.md.
    """
    limit, budget_sec = _wishes(request)
    ends_at = time.monotonic() + budget_sec
    done = reap(trigger=Trigger.TICK)
    _scheduler.turn()
    tally = run_due(limit, ends_at - time.monotonic())
    if done.errors and not tally.claimed:
        # After the wait for a database that is down, there may be no time for another try.
        return _error(503, done.errors[0])
    return JsonResponse(
        {
            "ok": True,
            "claimed": tally.claimed,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
        }
    )


@_endpoint("GET", "HEAD")
def health(request: HttpRequest) -> JsonResponse:
    """Answer 200 if passes run at their interval, and 503 if they do not, the database is down, or
    row-level security hides jobs. With ``?max_due_age_sec=``, a due job that has waited longer also
    causes 503. Clients that may tick are told the error.
    """
    longest_due = _seconds(request.GET.get("max_due_age_sec"))
    answer: dict[str, Any] = {"ok": False, "last_pass_age_sec": None, "oldest_due_age_sec": None}
    try:
        pass_age, due_age = _last_pass_age(), _oldest_due_age()
        interval = conf.settings().reaper_interval_sec
        unseen = _unseen()
    except (Error, JobreaperError) as error:
        return _unhealthy(request, answer, _log(request, error))
    passes_come = pass_age is not None and pass_age <= MISSED_PASSES * interval
    is_late = longest_due is not None and due_age is not None and due_age > longest_due
    answer |= {
        "ok": passes_come and not is_late,
        "last_pass_age_sec": pass_age,
        "oldest_due_age_sec": due_age,
    }
    if unseen:
        logger.warning("%s cannot tell how the jobs are: %s", request.path, "; ".join(unseen))
        return _unhealthy(request, {**answer, "ok": False}, "; ".join(unseen))
    return JsonResponse(answer, status=200 if answer["ok"] else 503)


def _unhealthy(request: HttpRequest, answer: dict[str, Any], said: str) -> JsonResponse:
    try:
        check_access(request)
    except (Refused, Error, JobreaperError):
        said = UNSAID
    return JsonResponse({**answer, "error": said}, status=503)


def _wishes(request: HttpRequest) -> tuple[int, float]:
    """Return the limit and the budget from the body.

    Raises:
        Refused: the body is too long or invalid.
    """
    if request.content_type in FORM_TYPES:
        if {*request.POST, *request.FILES} - {CSRF_FIELD}:
            raise Refused(415, "the body is a form: send JSON as Content-Type: application/json")
        return DEFAULT_LIMIT, DEFAULT_BUDGET_SEC
    try:
        # One more byte shows that the body is too long, whatever Content-Length says.
        body = request.read(LONGEST_BODY + 1)
    except (UnreadablePostError, OSError):
        raise Refused(400, "the body could not be read") from None
    if len(body) > LONGEST_BODY:
        raise Refused(413, f"the body must not be longer than {LONGEST_BODY} bytes")
    try:
        wishes = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(wishes, dict) or wishes.keys() - {"limit", "budget_sec"}:
        raise Refused(400, "the body may have limit and budget_sec, and nothing else")
    limit = wishes.get("limit", DEFAULT_LIMIT)
    budget_sec = wishes.get("budget_sec", DEFAULT_BUDGET_SEC)
    if not _is_within(limit, int, 1, MOST_JOBS):
        raise Refused(400, f"limit must be a whole number from 1 to {MOST_JOBS}")
    if not _is_within(budget_sec, int | float, 0, LONGEST_BUDGET_SEC):
        raise Refused(400, f"budget_sec must be a number from 0 to {LONGEST_BUDGET_SEC:g}")
    return limit, budget_sec


def _is_within(value: Any, kind: Any, least: float, most: float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most


def _seconds(text: str | None) -> float | None:
    try:
        seconds = None if text is None else float(text)
    except ValueError:
        seconds = -1
    if seconds is not None and not seconds >= 0:
        raise Refused(400, "max_due_age_sec must be a number of seconds")
    return seconds


def _last_pass_age() -> float | None:
    """Return the seconds since the last successful pass; of several databases, the longest."""
    ages: list[float] = []
    for alias in by_alias():
        rows = fetch(connection_for(alias), sql.render("statements/last_pass_age"), {})
        if not rows:
            return None
        ages += rows[0]
    return max(ages, default=None)


def _unseen() -> list[str]:
    """Return why jobs may be hidden, so that nothing can be said about them."""
    return [
        reason
        for alias, tables in by_alias().items()
        for reason in hidden(connection_for(alias), tables).values()
    ]


def _oldest_due_age() -> float | None:
    """Return how many seconds the oldest due job of any table has waited."""
    ages: list[float] = []
    for table in job_tables():
        if table.can_be_leased:
            rows = fetch(table.connection(), table.oldest_due_age_statement, {})
            ages += [age for (age,) in rows]
    return max(ages, default=None)
