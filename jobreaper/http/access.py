"""Who may tick: a client with the token, or staff with a session."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.crypto import constant_time_compare

from jobreaper import conf

SCHEME: Final = "bearer"


class Refused(Exception):
    """The request is refused."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, which returns its reason instead of a page."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def check_access(request: HttpRequest) -> None:
    """Return if the request may tick.

    If a request has an ``Authorization`` header, only that counts. A request without it comes from
    a browser: it needs a staff session and has to pass the CSRF check, because any page can cause
    the browser to send a session's cookie.

    Raises:
        Refused: the request may not tick.
    """
    given = request.headers.get("Authorization")
    token = conf.settings().tick_token
    if given is not None:
        scheme, _, value = given.partition(" ")
        if token is None:
            raise Refused(403, "no token is set: see JOBREAPER_TICK_TOKEN")
        if scheme.lower() != SCHEME or not constant_time_compare(value.strip(), token):
            raise Refused(401, "the token is wrong")
        return
    user = getattr(request, "user", None)
    if user is None or not (user.is_active and user.is_staff):
        if token is None:
            raise Refused(403, "no token is set (JOBREAPER_TICK_TOKEN), and you are not staff")
        raise Refused(401, "a token is needed: Authorization: Bearer …")
    check = _CsrfCheck(_nothing)
    check.process_request(request)
    if reason := check.process_view(request, _nothing, (), {}):
        raise Refused(403, str(reason))


def _nothing(_: HttpRequest) -> HttpResponse:
    return HttpResponse()
