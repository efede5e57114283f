"""Shows what the database refuses in words on the page, and never as an error 500."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.db import DataError, Error, connections, transaction
from django.forms.utils import ErrorDict
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.translation import gettext as _

from jobreaper.admin.databases import AdminOfDatabase
from jobreaper.admin.keys import key_of
from jobreaper.db import in_words

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Text that cannot be sent to the database raises an exception before it is sent.
REFUSED: Final = (Error, ValidationError, UnicodeEncodeError, OverflowError, RecursionError)

_REFUSAL: Final = "_jobreaper_refusal"


class RefusalsInWords(AdminOfDatabase):
    """An admin whose pages say what the database has refused."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Add or change a row. If it is refused, the form shows the error."""

        def answer() -> Any:
            page = super(RefusalsInWords, self).changeform_view(
                request, object_id, form_url, extra_context
            )
            # Widgets query what they show when the page is rendered, which is later.
            if hasattr(page, "render") and _has_nul(request):
                page.render()
            return page

        if request.method != "POST":
            return answer()
        try:
            return self.undone_if_refused(request, answer)
        except REFUSED as error:
            setattr(request, _REFUSAL, _words(error))
        return answer()

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form. After a refusal, return one that says so and does not validate again."""
        form: Any = super().get_form(request, obj, change, **kwargs)
        refusal: str | None = getattr(request, _REFUSAL, None)
        if refusal is None:
            return form

        def full_clean(self: Any) -> None:
            self._errors = ErrorDict()
            self.cleaned_data = {}
            self.data = self.data.copy()
            for name, values in list(self.data.lists()):
                self.data.setlist(name, [value.replace("\x00", "") for value in values])
            self.add_error(None, refusal)

        return type(form.__name__, (form,), {"full_clean": full_clean})

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list, or run an action on it."""
        show = partial(super().changelist_view, request, extra_context)
        return self._said_at(request, request.get_full_path(), show)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Delete a row, after a confirmation."""
        delete = partial(super().delete_view, request, object_id, extra_context)
        return self._said_at(request, request.get_full_path(), delete)

    def response_action(self, request: HttpRequest, queryset: Any, *args: Any, **more: Any) -> Any:
        """Run an action, unless the selected values are not keys."""
        for key in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                key_of(self.opts.pk, key)
            except (ValidationError, ValueError, TypeError):
                said = _("%(key)r is no key of this table. Nothing was changed.") % {"key": key}
                self.message_user(request, said, messages.ERROR)
                return None
        return super().response_action(request, queryset, *args, **more)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row, or ``None`` if the database cannot contain such a key."""
        find = partial(super().get_object, request, object_id, from_field)
        try:
            return self.undone_if_refused(request, find)
        except DataError:
            return None

    def _said_at(self, request: HttpRequest, url: str, answer: Callable[[], Any]) -> Any:
        if request.method != "POST":
            return answer()
        try:
            return self.undone_if_refused(request, answer)
        except REFUSED as error:
            self.message_user(request, _words(error), messages.ERROR)
            return HttpResponseRedirect(url)

    def undone_if_refused(self, request: HttpRequest, do: Callable[[], T]) -> T:
        """Run the block. The request's transaction stays usable after a refusal."""
        alias = self.database(request)
        if not connections[alias].in_atomic_block:
            return do()
        with transaction.atomic(using=alias):
            return do()


def _has_nul(request: HttpRequest) -> bool:
    """Return whether a form contains text that cannot be sent in a statement."""
    return any("\x00" in value for _, values in request.POST.lists() for value in values)


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    if isinstance(error, Error):
        said = in_words(error)
        logger.warning("the database refused what an admin page sent: %s", said)
        return _("The database refused: %(error)s") % {"error": said}
    return _("A value cannot be stored: %(error)s") % {"error": type(error).__name__}
