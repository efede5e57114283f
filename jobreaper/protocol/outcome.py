"""What is kept of an attempt's outcome: the result of one that succeeded, the exception of one that
failed.
"""

from __future__ import annotations

import json
from typing import Any, Final

from jobreaper.db import storable, traceback_of, unstorable_in_json
from jobreaper.exceptions import BadResult, JobreaperError
from jobreaper.protocol.holding import Holding

# A result is read with its row.
LARGEST_RESULT_BYTES: Final = 2 * 1024 * 1024

# Of a longer traceback, the beginning and the end are kept: the end says what was raised.
LONGEST_TRACEBACK: Final = 16_000
_BEGINNING: Final = 4_000

LONGEST_CLASS_PATH: Final = 500


def as_json(value: Any, what: str, most_bytes: int, refusal: type[JobreaperError]) -> str:
    """Return ``value`` as JSON that PostgreSQL can store.

    Raises:
        JobreaperError: of the class ``refusal``: it is not JSON, too large, or has text that cannot
            be stored.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal(f"the {what} is not JSON: {error}") from None
    if size > most_bytes:
        raise refusal(f"the {what} has {size:,} bytes as JSON, and {most_bytes:,} are the most")
    if unstorable := unstorable_in_json(text):
        raise refusal(f"the {what} has the character {unstorable}, which PostgreSQL cannot store")
    return text


def note_result(holding: Holding, result: Any) -> None:
    """Keep a result until the job is finished.

    Raises:
        BadResult: it is not JSON, or too large; or the table has no column for it.
    """
    if not holding.table.has_result:
        raise BadResult(f"{holding.table.name} has no JSONField named result")
    holding.result = check_result(result)


def check_result(result: Any) -> str:
    """Return a result as JSON.

    Raises:
        BadResult: it is not JSON, or too large.
    """
    return as_json(result, "result", LARGEST_RESULT_BYTES, BadResult)


def account(failure: object) -> dict[str, str | None]:
    """Return the class path and the traceback of an exception, as an event can hold them, and of
    anything else that neither is known.
    """
    if not isinstance(failure, BaseException):
        return {"exception": None, "traceback": None}
    kind = type(failure)
    path = storable(f"{kind.__module__}.{kind.__qualname__}")[:LONGEST_CLASS_PATH]
    try:
        text = traceback_of(failure)
    # The exception is not ours, and must not keep its job from ending.
    except BaseException:
        text = f"{path}: its traceback cannot be printed"
    return {"exception": path, "traceback": _storable_in_full(_cut(text))}


def _cut(text: str) -> str:
    cut = len(text) - LONGEST_TRACEBACK
    if cut <= 0:
        return text
    end = text[-(LONGEST_TRACEBACK - _BEGINNING) :]
    return f"{text[:_BEGINNING]}\n... ({cut} characters cut)\n{end}"


def _storable_in_full(text: str) -> str:
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
