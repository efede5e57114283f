"""The page of the Redis queue: what is in Redis now, and what to do with dead letters.

It is there if the setting ``REDIS_QUEUE`` names a configuration. Nothing is kept in the database;
a Redis that is away leaves a page that says so.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobreaper import conf
from jobreaper.admin.words import shortened
from jobreaper.exceptions import ConfigurationError
from jobreaper.models import RedisQueue

if TYPE_CHECKING:
    import redis

    from jobreaper.redisq.by_hand import DeadLetters, Outcome
    from jobreaper.redisq.config import Config
    from jobreaper.redisq.keys import Keys

    ModelAdmin = admin.ModelAdmin[RedisQueue]
else:
    ModelAdmin = admin.ModelAdmin

PAGE: Final = 50
CHOSEN: Final = "letter"
CONFIRMED: Final = "confirmed"
# Of a letter, in the page. An entry may have a megabyte.
SHOWN: Final = 300

# A person waits for the page, in seconds.
LONGEST_WAIT: Final = 2.0

REQUEST_ID: Final = "X-Request-ID"


class Away(Exception):
    """Redis cannot be asked. The message says why, for the page."""


@admin.register(RedisQueue)
class RedisQueueAdmin(ModelAdmin):
    """Users who may view it see the page, users who may change it requeue dead letters, and users
    who may delete it discard them.
    """

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether there is a Redis queue that this user may see."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether there is a Redis queue that this user may see."""
        return _is_configured() and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return ``False``: there are no rows."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """Return the page's address, and those of its two buttons."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("requeue/", view(self.requeue_view), name=f"{name}_requeue"),
            path("discard/", view(self.discard_view), name=f"{name}_discard"),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what is in Redis now."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        start = _start(request)
        context: dict[str, Any] = {}
        try:
            with _redis() as (client, keys):
                from jobreaper.redisq.overview import dead_letters, overview

                context["now"] = now = overview(client, keys)
                letters = dead_letters(client, keys, start, PAGE)
                context["letters"] = [_shown(each) for each in letters]
                context["later"] = max(0, start - PAGE) if start else None
                context["earlier"] = start + PAGE if start + PAGE < (now.dead or 0) else None
        except Away as error:
            # Half a page would look like an empty queue.
            context = {"away": str(error)}
        return self._page(request, "redis_queue.html", context | {"start": start})

    def requeue_view(self, request: HttpRequest) -> HttpResponse:
        """Push the jobs of the chosen dead letters to their queues again."""
        self._check(request, "change")
        return self._act(request, lambda letters, chosen: letters.requeue(chosen), _requeued)

    def discard_view(self, request: HttpRequest) -> HttpResponse:
        """Delete the chosen dead letters, once that was confirmed."""
        self._check(request, "delete")
        if CONFIRMED in request.POST or not request.POST.getlist(CHOSEN):
            return self._act(request, lambda letters, chosen: letters.discard(chosen), _discarded)
        chosen = request.POST.getlist(CHOSEN)[:PAGE]
        try:
            with _redis() as (client, keys):
                from jobreaper.redisq.by_hand import DeadLetters

                found = DeadLetters(client, keys, by="").chosen(chosen)
        except Away as error:
            return self._back(request, str(error), messages.ERROR)
        letters = [shortened(_name(letter)) for letter in found]
        context = {"letters": letters, "chosen": chosen, "confirmed": CONFIRMED}
        return self._page(request, "redis_queue_discard.html", context)

    def _check(self, request: HttpRequest, permission: str) -> None:
        codename = f"{self.opts.app_label}.{permission}_{self.opts.model_name}"
        if not (self.has_view_permission(request) and request.user.has_perm(codename)):
            raise PermissionDenied

    def _act(
        self,
        request: HttpRequest,
        act: Callable[[DeadLetters, list[str]], Outcome],
        said: Callable[[int], str],
    ) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        chosen = request.POST.getlist(CHOSEN)[:PAGE]
        if not chosen:
            return self._back(request, _("Choose at least one dead letter."), messages.WARNING)
        try:
            with _redis() as (client, keys):
                from jobreaper.redisq.by_hand import DeadLetters

                letters = DeadLetters(client, keys, by=request.user.get_username())
                outcome = act(letters, chosen)
        except Away as error:
            return self._back(request, str(error), messages.ERROR)
        _log(request, outcome)
        self._tell(request, outcome, said)
        return self._back(request)

    def _tell(self, request: HttpRequest, outcome: Outcome, said: Callable[[int], str]) -> None:
        if outcome.done:
            self.message_user(request, said(len(outcome.done)), messages.SUCCESS)
        if outcome.gone:
            gone = ngettext(
                "%(n)d was no longer there.", "%(n)d were no longer there.", outcome.gone
            )
            self.message_user(request, gone % {"n": outcome.gone}, messages.WARNING)
        if outcome.malformed:
            text = ngettext(
                "%(n)d is not a job, and cannot be queued.",
                "%(n)d are not jobs, and cannot be queued.",
                outcome.malformed,
            )
            self.message_user(request, text % {"n": outcome.malformed}, messages.ERROR)

    def _back(
        self, request: HttpRequest, text: str | None = None, level: int = messages.INFO
    ) -> HttpResponse:
        if text is not None:
            self.message_user(request, text, level)
        page = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(reverse(page, current_app=self.admin_site.name))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        label = f"{self.opts.app_label}.%s_{self.opts.model_name}"
        return TemplateResponse(
            request,
            f"admin/jobreaper/{template}",
            {
                **self.admin_site.each_context(request),
                "title": self.opts.verbose_name,
                "opts": self.opts,
                "chosen_name": CHOSEN,
                "may_requeue": request.user.has_perm(label % "change"),
                "may_discard": request.user.has_perm(label % "delete"),
                **context,
            },
        )


def _is_configured() -> bool:
    return conf.settings().redis_queue is not None


@contextmanager
def _redis() -> Iterator[tuple[redis.Redis, Keys]]:
    """A client of the configured Redis.

    Raises:
        Away: the configuration is wrong, a package is missing, or Redis does not answer.
    """
    try:
        from redis import RedisError

        from jobreaper.redisq.connecting import connect, unreachable
        from jobreaper.redisq.keys import Keys
        from jobreaper.redisq.loading import load
    except ImportError as error:
        raise Away(_("REDIS_QUEUE needs the extra redisq: %s") % error) from error
    try:
        config = load(conf.settings().redis_queue)
    except ConfigurationError as error:
        raise Away(str(error)) from error
    try:
        with connect(_quick(config), retries=0) as client:
            yield client, Keys.of(config)
    except RedisError as error:
        raise Away(str(unreachable(config, error))) from error


def _quick(config: Config) -> Config:
    """Return ``config`` with timeouts for a page, which a person waits for."""
    waits = {
        name: min(getattr(config.redis, name), LONGEST_WAIT)
        for name in ("dial_timeout", "read_timeout", "write_timeout")
    }
    return config.model_copy(update={"redis": config.redis.model_copy(update=waits)})


def _start(request: HttpRequest) -> int:
    given = request.GET.get("start", "")
    # Redis counts up to 2 ** 63.
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0


def _shown(found: Any) -> dict[str, Any]:
    letter = found.letter
    job = letter.job
    return {
        "digest": found.digest,
        "name": shortened(_name(letter)),
        "is_job": job is not None,
        "reason": letter.reason or _("not known"),
        "detail": letter.detail[:SHOWN],
        "at": letter.at[:19].replace("T", " "),
        "queue": shortened(letter.queue),
        "worker": shortened(letter.worker_id),
        "entry": letter.entry.decode(errors="backslashreplace")[:SHOWN],
        "is_cut": len(letter.entry) > SHOWN,
    }


def _name(letter: Any) -> str:
    """Return how a letter is called: its job's file, or that it is none."""
    job = letter.job
    return _("not a job") if job is None else job.filepath


def _log(request: HttpRequest, outcome: Outcome) -> None:
    from jobreaper.redisq import logs

    request_id = request.headers.get(REQUEST_ID, "") or str(uuid.uuid4())
    by = request.user.get_username()
    for letter in outcome.done:
        about = logs.of_job(letter.job, queue=letter.queue)
        about["request_id"] = request_id[: logs.LONGEST_VALUE]
        logs.log(logging.INFO, f"dead letter {outcome.did} by {by}", **about)


def _requeued(number: int) -> str:
    text = ngettext("%(n)d was queued again.", "%(n)d were queued again.", number)
    return text % {"n": number}


def _discarded(number: int) -> str:
    text = ngettext("%(n)d was discarded.", "%(n)d were discarded.", number)
    return text % {"n": number}
