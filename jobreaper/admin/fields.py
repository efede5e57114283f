"""Form fields of the admin."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext as _

from jobreaper.admin.readable import MOST_NESTED, is_too_deep
from jobreaper.exceptions import BadPayload
from jobreaper.queue.dedupe import check_payload


class StorableJSONField(forms.JSONField):
    """Accepts JSON that PostgreSQL can store and Python can read again: without NaN, NUL, lone
    surrogates, numbers with too many digits, or too many levels.
    """

    def to_python(self, value: Any) -> Any:
        """Return the value.

        Raises:
            ValidationError: it cannot be stored or read again.
        """
        problem = _problem(value)
        if problem is not None:
            raise ValidationError(problem)
        return super().to_python(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the value that the form shows again, or the text as it was sent if it is
        invalid.
        """
        if not self.disabled and _problem(data) is not None:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)


class NotNullJSONField(StorableJSONField):
    """Accepts ``{}`` as a value, and treats an empty field as an error. Django's own field does the
    opposite.
    """

    empty_values: Any = [None]


def _problem(text: Any) -> str | None:
    """Return a problem of JSON text that Django does not find."""
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
        if is_too_deep(value):
            raise RecursionError
        check_payload(value)
    except json.JSONDecodeError:
        return None
    except RecursionError:
        return _("This is nested deeper than %(levels)d levels.") % {"levels": MOST_NESTED}
    except BadPayload as error:
        return str(error).replace("payload", _("the value"), 1)
    # A number with more digits than Python reads.
    except ValueError as error:
        return str(error)
    return None
