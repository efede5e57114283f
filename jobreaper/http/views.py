"""The tick and the health."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.core.exceptions import BadRequest, SuspiciousOperation
from django.db import Error, OperationalError, connections, transaction
from django.http import HttpRequest, JsonResponse
from django.http.multipartparser import MultiPartParserError
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from jobreaper import conf, sql
from jobreaper.db import connection_for, fetch, in_words
from jobreaper.exceptions import JobreaperError
from jobreaper.http.access import Refused, check_access
from jobreaper.reaper import reap
from jobreaper.runs import run_due
from jobreaper.states import Trigger
from jobreaper.tables import job_tables

logger = logging.getLogger(__name__)

DEFAULT_LIMIT: Final = 10
MOST_JOBS: Final = 1000
# Under the half minute after which cron services and proxies give up.
DEFAULT_BUDGET_SEC: Final = 20.0
LONGEST_BUDGET_SEC: Final = 900.0

# {"limit": 10, "budget_sec": 20} is all that a body has to say.
LONGEST_BODY: Final = 1024

# What a button in a page of staff's sends has nothing to say but its CSRF token.
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
CSRF_FIELD: Final = "csrfmiddlewaretoken"

# What Django raises at a form that is broken, cut off or too large.
UNREADABLE: Final = (BadRequest, MultiPartParserError, SuspiciousOperation, UnreadablePostError)

# Passes that stay out so long are not late but gone.
MISSED_PASSES: Final = 3

View = Callable[[HttpRequest], JsonResponse]


def _endpoint(*methods: str) -> Callable[[View], View]:
    """Return a decorator for a view that answers JSON, whatever the request and the database, to
    these methods only, and in no transaction of the request's: what is claimed must be seen by
    others at once.
    """

    def decorate(view: View) -> View:
        @csrf_exempt
        @wraps(view)
        def endpoint(request: HttpRequest) -> JsonResponse:
            if request.method not in methods:
                answer = _error(405, f"use {methods[0]}")
                answer["Allow"] = ", ".join(methods)
                return answer
            try:
                answer = view(request)
            except Refused as refused:
                answer = _error(refused.status, refused.error)
                if refused.status == 401:
                    answer["WWW-Authenticate"] = "Bearer"
            except UNREADABLE as error:
                answer = _error(400, f"the request could not be read: {error}")
            except (Error, JobreaperError) as error:
                said = in_words(error)
                logger.warning("%s failed: %s", request.path, said)
                answer = _error(503, said)
            answer["Cache-Control"] = "no-store"
            return answer

        for alias in connections:
            transaction.non_atomic_requests(using=alias)(endpoint)
        return endpoint

    return decorate


def _error(status: int, error: str) -> JsonResponse:
    return JsonResponse({"ok": False, "error": error}, status=status)


@_endpoint("POST")
def tick(request: HttpRequest) -> JsonResponse:
    """Reap, then run at most ``limit`` due jobs and start none after ``budget_sec`` seconds; both
    may be given in a JSON body. See docs/queue.md.
    """
    check_access(request)
    limit, budget_sec = _wishes(request)
    ends_at = time.monotonic() + budget_sec
    done = reap(trigger=Trigger.TICK)
    tally = run_due(limit, ends_at - time.monotonic())
    if done.errors and not tally.claimed:
        # The wait for a database that is away may have left no time to be told so by it again.
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
    """200 where passes come at their interval, 503 where they do not or the database is away. The
    age of the oldest due job counts where ``?max_due_age_sec=`` says from when it is too old.
    """
    longest_due = _seconds(request.GET.get("max_due_age_sec"))
    answer: dict[str, Any] = {"ok": False, "last_pass_age_sec": None, "oldest_due_age_sec": None}
    try:
        pass_age, due_age = _last_pass_age(), _oldest_due_age()
    except Error as error:
        said = in_words(error)
        logger.warning("%s failed: %s", request.path, said)
        if isinstance(error, OperationalError):
            # Anybody may ask, and these words name hosts and roles.
            said = "the database did not answer; the log says why"
        return JsonResponse({**answer, "error": said}, status=503)
    interval = conf.settings().reaper_interval_sec
    passes_come = pass_age is not None and pass_age <= MISSED_PASSES * interval
    is_late = longest_due is not None and due_age is not None and due_age > longest_due
    answer |= {
        "ok": passes_come and not is_late,
        "last_pass_age_sec": pass_age,
        "oldest_due_age_sec": due_age,
    }
    return JsonResponse(answer, status=200 if answer["ok"] else 503)


def _wishes(request: HttpRequest) -> tuple[int, float]:
    """Return the limit and the budget that the body asks for.

    Raises:
        Refused: the body is too long, or not what it should be.
    """
    if request.content_type in FORM_TYPES:
        if {*request.POST, *request.FILES} - {CSRF_FIELD}:
            raise Refused(415, "the body is a form: send JSON as Content-Type: application/json")
        return DEFAULT_LIMIT, DEFAULT_BUDGET_SEC
    try:
        # One byte more tells that there is more, whatever Content-Length says.
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
    """Return the seconds since the last pass that went well, the oldest over the databases."""
    ages: list[float] = []
    for alias in {table.alias for table in job_tables()}:
        rows = fetch(connection_for(alias), sql.render("statements/last_pass_age"), {})
        if not rows:
            return None
        ages += rows[0]
    return max(ages, default=None)


def _oldest_due_age() -> float | None:
    """Return the seconds that the oldest due job of any table has waited."""
    ages: list[float] = []
    for table in job_tables():
        if table.can_be_leased:
            rows = fetch(table.connection(), table.oldest_due_age_statement, {})
            ages += [age for (age,) in rows]
    return max(ages, default=None)
