"""The Reaper page: everything at one look, a dry run, a pass now, and pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobreaper.admin.reaper_parts import ReaperParts
from jobreaper.control import pauses
from jobreaper.db import in_words
from jobreaper.exceptions import JobreaperError
from jobreaper.models import Pause, Reaper, Schedule
from jobreaper.reaper import PassResult, reap
from jobreaper.schedule import pause_schedule, resume_schedule
from jobreaper.states import Trigger
from jobreaper.tables import named

# How often the page asks for its parts again.
REFRESH_SEC: Final = 10
MOST_NAMED: Final = 10

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

Act = Callable[["ReaperAdmin", HttpRequest], None]


@admin.register(Reaper)
class ReaperAdmin(ModelAdmin):
    """The Reaper page, in the place of a list. It needs the permission ``view_reaper``, its buttons
    the permission of what they do.
    """

    class Media:
        css = {"all": ["jobreaper/admin.css"]}
        js = ["jobreaper/reaper.js"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return ``False``: there are no rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``: there are no rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``: there are no rows."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """Return the page, its parts alone, and what its buttons do."""
        view = self.admin_site.admin_view
        acts: dict[str, Act] = {
            "dry-run": lambda own, request: own.run_pass(request, dry_run=True),
            "reap": lambda own, request: own.run_pass(request, dry_run=False),
            "pause": ReaperAdmin.pause,
            "resume": ReaperAdmin.resume,
            "pause-schedule": ReaperAdmin.pause_schedule,
            "resume-schedule": ReaperAdmin.resume_schedule,
        }
        return [
            path("", view(self.changelist_view), name="jobreaper_reaper_changelist"),
            path("parts/", view(self.parts_view), name="jobreaper_reaper_parts"),
            *(
                path(f"{name}/", view(self._acting(act)), name=f"jobreaper_reaper_{name}")
                for name, act in acts.items()
            ),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page."""
        return self._page(request, "admin/jobreaper/reaper.html", extra_context or {})

    def parts_view(self, request: HttpRequest) -> HttpResponse:
        """Show only the parts that change, for the script that refreshes them."""
        response = self._page(request, "admin/jobreaper/reaper_parts.html", {})
        response["X-Jobreaper"] = "parts"
        add_never_cache_headers(response)
        return response

    def _page(self, request: HttpRequest, template: str, more: dict[str, Any]) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": _("Reaper"),
            "opts": self.opts,
            "media": self.media,
            "parts": ReaperParts(self.admin_site, request),
            "refresh_sec": REFRESH_SEC,
            **more,
        }
        return TemplateResponse(request, template, context)

    def _acting(self, act: Act) -> Callable[[HttpRequest], HttpResponse]:
        """Return the view of a button: it acts, says what it did, and leads back to the page."""

        def view(request: HttpRequest) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            try:
                act(self, request)
            except Error as error:
                said = _("The database refused: %(error)s") % {"error": in_words(error)}
                self.message_user(request, said, messages.ERROR)
            except (JobreaperError, ValueError) as error:
                self.message_user(request, str(error), messages.ERROR)
            address = reverse("admin:jobreaper_reaper_changelist", current_app=self.admin_site.name)
            return HttpResponseRedirect(address)

        return view

    # What the buttons do

    def run_pass(self, request: HttpRequest, *, dry_run: bool) -> None:
        """Run a pass, or say what one would do.

        Raises:
            PermissionDenied: the user lacks ``run_reaper``.
        """
        if not request.user.has_perm("jobreaper.run_reaper"):
            raise PermissionDenied
        result = reap(dry_run=dry_run, trigger=Trigger.ADMIN)
        for level, said in _in_words(result):
            self.message_user(request, said, level)

    def pause(self, request: HttpRequest) -> None:
        """Pause a stage or type.

        Raises:
            PermissionDenied: the user may not add pauses.
        """
        self._require(request, Pause, "add")
        table, name = _target(request)
        pauses.pause(name, model=named([table])[0].model, by=request.user.get_username())
        said = _("%(name)s of %(table)s is paused.") % {"name": name, "table": table}
        self.message_user(request, said, messages.SUCCESS)

    def resume(self, request: HttpRequest) -> None:
        """End the pause of a stage or type.

        Raises:
            PermissionDenied: the user may not delete pauses.
        """
        self._require(request, Pause, "delete")
        table, name = _target(request)
        pauses.resume(name, model=named([table])[0].model, by=request.user.get_username())
        said = _("%(name)s of %(table)s is resumed.") % {"name": name, "table": table}
        self.message_user(request, said, messages.SUCCESS)

    def pause_schedule(self, request: HttpRequest) -> None:
        """Pause a schedule.

        Raises:
            PermissionDenied: the user may not change schedules.
        """
        self._require(request, Schedule, "change")
        name = request.POST.get("target", "")
        pause_schedule(name, by=request.user.get_username())
        said = _("%(name)s was paused.") % {"name": name}
        self.message_user(request, said, messages.SUCCESS)

    def resume_schedule(self, request: HttpRequest) -> None:
        """End the pause of a schedule.

        Raises:
            PermissionDenied: the user may not change schedules.
        """
        self._require(request, Schedule, "change")
        name = request.POST.get("target", "")
        resume_schedule(name)
        said = _("%(name)s was resumed.") % {"name": name}
        self.message_user(request, said, messages.SUCCESS)

    def _require(self, request: HttpRequest, model: Any, action: str) -> None:
        if not ReaperParts(self.admin_site, request).may(model, action):
            raise PermissionDenied


def _target(request: HttpRequest) -> tuple[str, str]:
    table, _, name = request.POST.get("target", "").partition(":")
    return table, name


def _in_words(result: PassResult) -> list[tuple[int, str]]:
    """Return what a pass did, or would do, as messages."""
    said: list[tuple[int, str]] = []
    if result.held_reason is not None:
        held = _("The pass was held: %(reason)s.") % {"reason": result.held_reason}
        said.append((messages.WARNING, held))
    for name, table in result.tables.items():
        for keys, words in (
            (table.requeued, _words_of(result, len(table.requeued), requeued=True)),
            (table.failed, _words_of(result, len(table.failed), requeued=False)),
        ):
            if keys:
                some = ", ".join(str(key) for key in keys[:MOST_NAMED])
                more = "…" if len(keys) > MOST_NAMED else ""
                said.append((messages.SUCCESS, f"{name}: {words} ({some}{more})"))
    said += [(messages.ERROR, error) for error in result.all_errors]
    if not said:
        done = _("A pass would find nothing to reap.") if result.dry_run else _("Nothing to reap.")
        said.append((messages.SUCCESS, done))
    return said


def _words_of(result: PassResult, n: int, *, requeued: bool) -> str:
    if result.dry_run and requeued:
        said = ngettext("%(n)d job would be requeued", "%(n)d jobs would be requeued", n)
    elif result.dry_run:
        said = ngettext("%(n)d job would fail", "%(n)d jobs would fail", n)
    elif requeued:
        said = ngettext("%(n)d job was requeued", "%(n)d jobs were requeued", n)
    else:
        said = ngettext("%(n)d job failed", "%(n)d jobs failed", n)
    return said % {"n": n}
