"""Dedupe keys, which say whether two jobs are the same.

The JSON in a key is what a browser's ``JSON.stringify`` writes for the same payload with sorted
keys (RFC 8785), so that a key made in JavaScript equals one made here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from jobreaper.db import unstorable_in_json
from jobreaper.exceptions import BadPayload

# JavaScript uses an exponent for numbers from 10^21 and for those below 10^-6.
_LARGEST_PLAIN_EXPONENT: Final = 21
_SMALLEST_PLAIN_EXPONENT: Final = -6

_unescaped: Final = json.JSONEncoder(ensure_ascii=False).encode
_read: Final = json.JSONDecoder().raw_decode

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def make_dedupe_key(type: str, org_id: object, payload: Any) -> str:
    """Return ``"<type>::<org_id|global>::<sorted JSON>"``; without a payload the JSON is ``{}``.

    Raises:
        BadPayload: the payload is not JSON.
    """
    owner = "global" if org_id in (None, "") else org_id
    return f"{type}::{owner}::{sorted_json({} if payload is None else payload)}"


def sorted_json(value: Any) -> str:
    """Return compact JSON with sorted keys, unescaped text, and numbers as a browser writes them.

    Raises:
        BadPayload: it is not JSON.
    """
    try:
        return _write(value, "payload")
    except RecursionError:
        raise BadPayload("payload is nested too deeply, or contains itself") from None


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return what encodes a value as JSON, in parts; its second argument is the depth, 0.

    An encoder of the standard library makes this function anew for each value, which takes longer
    than to encode a short payload.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    separators = (encoder.key_separator, encoder.item_separator)
    text = json.encoder.encode_basestring
    try:
        # No markers of what it is in: a value that contains itself ends in a RecursionError. No
        # indent, no sorted keys, no keys left out, no NaN.
        encode: Callable[[Any, int], Iterable[str]] = make(  # type: ignore[misc]
            None, encoder.default, text, None, *separators, False, False, False
        )
    # It is not documented: another interpreter may have none, and its arguments may change.
    except TypeError:
        return lambda value, depth: encoder.iterencode(value)
    return encode


_plain: Final = _encoder()


def payload_json(payload: Any) -> str:
    """Return a payload as JSON that PostgreSQL can store unchanged.

    Raises:
        BadPayload: it is not JSON, or contains text that PostgreSQL cannot store.
    """
    # What comes back from JSON unchanged is JSON. To find that out takes a third of the time of a
    # look at each value.
    try:
        text = "".join(_plain(payload, 0))
        if not text.isascii():
            text.encode()
        # Only what is escaped may be unstorable.
        if _read(text)[0] == payload and not ("\\" in text and unstorable_in_json(text)):
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    check_payload(payload)
    return json.dumps(payload)


def check_payload(payload: Any) -> None:
    """Return if the payload is JSON that PostgreSQL can store unchanged.

    Raises:
        BadPayload: it is not JSON, or contains text that PostgreSQL cannot store.
    """
    if unstorable := unstorable_in_json(sorted_json(payload)):
        raise BadPayload(
            f"payload has the character {unstorable} in its text, which PostgreSQL cannot store"
        )


def _write(value: Any, place: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _integer(int(value), place)
    if isinstance(value, float):
        return _number(float(value), place)
    if isinstance(value, dict):
        members = sorted((_key(key, place), key) for key in value)
        parts = (f"{_text(key)}:{_write(value[key], f'{place}[{key!r}]')}" for _, key in members)
        return f"{{{','.join(parts)}}}"
    if isinstance(value, list | tuple):
        parts = (_write(item, f"{place}[{n}]") for n, item in enumerate(value))
        return f"[{','.join(parts)}]"
    raise BadPayload(f"{place} is of type {type(value).__name__}, which JSON does not have")


def _key(key: object, place: str) -> bytes:
    """Return the sort key of a member: UTF-16, as JavaScript compares text."""
    if not isinstance(key, str):
        raise BadPayload(f"{place} has the key {key!r}; keys in JSON are text")
    return key.encode("utf-16-be", "surrogatepass")


def _text(text: str) -> str:
    if text.isascii():
        return _unescaped(text)
    # In JavaScript, the two halves of a pair are one character; half a pair is escaped.
    whole = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    return _LONE_SURROGATE.sub(_escape, _unescaped(whole))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _integer(number: int, place: str) -> str:
    # Digit by digit, even where JavaScript would round: two long ids must not have the same key.
    if abs(number) >= 10**_LARGEST_PLAIN_EXPONENT and _is_exact(number):
        return _number(float(number), place)
    try:
        return str(number)
    except ValueError as error:
        raise BadPayload(f"{place}: {error}") from None


def _is_exact(number: int) -> bool:
    try:
        return float(number) == number
    except OverflowError:
        return False


def _number(number: float, place: str) -> str:
    """Return a number as JavaScript's ``Number.prototype.toString`` writes it."""
    if not math.isfinite(number):
        raise BadPayload(f"{place} is {number}, which JSON does not have")
    if not number:
        return "0"
    sign = "-" if number < 0 else ""
    # Both languages write the fewest digits that identify the number, but in different layouts.
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = int(exponent or 0) + len(whole) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= _LARGEST_PLAIN_EXPONENT:
        return sign + digits.ljust(point, "0")
    if 0 < point <= _LARGEST_PLAIN_EXPONENT:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if _SMALLEST_PLAIN_EXPONENT < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
