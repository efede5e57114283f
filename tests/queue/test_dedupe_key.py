"""Dedupe keys: two payloads that mean the same have one key, and no others."""

import enum
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper import BadPayload, make_dedupe_key
from jobreaper.queue.dedupe import _encoder, check_payload, payload_json, sorted_json

TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr), max_size=5).map("".join)
FLOATS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("d", struct.pack("Q", bits))[0])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS.filter(math.isfinite) | TEXT
)
PAYLOADS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=12,
)


def test_a_key_is_type_owner_and_sorted_json() -> None:
    assert make_dedupe_key("mail", "acme", {"b": [1, {"d": None, "c": True}], "a": "x"}) == (
        'mail::acme::{"a":"x","b":[1,{"c":true,"d":null}]}'
    )


@pytest.mark.parametrize("nobody", [None, ""])
def test_a_job_of_nobodys_is_global(nobody: str | None) -> None:
    assert make_dedupe_key("mail", nobody, {}) == "mail::global::{}"


def test_no_payload_is_an_empty_one() -> None:
    assert make_dedupe_key("mail", 7, None) == make_dedupe_key("mail", "7", {})


# The numbers of RFC 8785, appendix B, and some of our own.
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (2.0, "2"),
        (-2.50, "-2.5"),
        (100.0, "100"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1e21, "1e+21"),
        (999999999999999900000.0, "999999999999999900000"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.2, "1424953923781206.2"),
        (10**21, "1e+21"),
        (2**53 + 1, "9007199254740993"),
        (10**21 + 1, "1000000000000000000001"),
        (10**400, "1" + "0" * 400),
        (True, "true"),
    ],
)
def test_numbers_are_written_as_a_browser_does_and_long_ids_digit_by_digit(
    number: float, text: str
) -> None:
    assert sorted_json(number) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("é€😀", '"é€😀"'),
        ("\u2028/", '"\u2028/"'),
        ('"\\\b\f\n\r\t', r'"\"\\\b\f\n\r\t"'),
        ("\x00\x1f\x7f", '"\\u0000\\u001f\x7f"'),
        ("\ud83d\ude00", '"😀"'),
        ("\ud83d", r'"\ud83d"'),
        ("\ude00\ud83d", r'"\ude00\ud83d"'),
    ],
)
def test_text_is_not_escaped_but_where_it_must_be(text: str, written: str) -> None:
    assert sorted_json(text) == written


def test_members_are_sorted_as_javascript_does_by_utf_16() -> None:
    assert sorted_json({"\ufb33": 1, "😀": 2, "a": 3}) == '{"a":3,"😀":2,"\ufb33":1}'


@given(PAYLOADS)
def test_what_is_written_means_what_was_given(payload: Any) -> None:
    assert json.loads(sorted_json(payload)) == json.loads(json.dumps(payload))


@given(st.dictionaries(TEXT, PAYLOADS, max_size=6))
def test_the_order_of_members_does_not_matter(payload: dict[str, Any]) -> None:
    other_way = dict(reversed(payload.items()))
    assert make_dedupe_key("t", None, payload) == make_dedupe_key("t", None, other_way)


@given(PAYLOADS)
def test_a_key_can_be_stored(payload: Any) -> None:
    key = sorted_json(payload)
    assert "\x00" not in key
    key.encode()


def test_tuples_and_enumerations_are_what_json_makes_of_them() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        BIG = 3

    assert sorted_json({"of": (Colour.RED, Size.BIG)}) == '{"of":["red",3]}'


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        (float("nan"), "payload is nan"),
        ({"a": [1, float("inf")]}, r"payload\['a'\]\[1\] is inf"),
        ({1: "x"}, "payload has the key 1"),
        ({"a": {None: 1}}, r"payload\['a'\] has the key None"),
        ({"a": {1, 2}}, r"payload\['a'\] is of type set"),
        (b"x", "payload is of type bytes"),
        pytest.param(10**5000, "payload: ", id="a number too long to write"),
        ([object()], r"payload\[0\] is of type object"),
    ],
)
def test_what_is_not_json_is_named_with_its_place(payload: Any, place: str) -> None:
    with pytest.raises(BadPayload, match=place):
        make_dedupe_key("t", None, payload)
    with pytest.raises(BadPayload, match=place):
        payload_json(payload)


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    for check in (check_payload, payload_json):
        with pytest.raises(BadPayload, match="contains itself"):
            check(payload)


@pytest.mark.parametrize("text", ["a\x00b", "\ud83d", {"\ude00": 1}])
def test_text_that_postgresql_cannot_store_is_refused(text: Any) -> None:
    for check in (check_payload, payload_json):
        with pytest.raises(BadPayload, match="cannot store"):
            check(text)


@pytest.mark.parametrize("text", ["\\u0000", "\\\\ud83d", "\ud83d\ude00"])
def test_text_that_only_looks_like_it_is_not(text: str) -> None:
    check_payload(text)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16")
    assert json.loads(payload_json(text).encode()) == whole


@given(PAYLOADS)
def test_a_payload_is_encoded_alike_where_the_encoder_is_in_python(payload: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json.encoder, "c_make_encoder", None)
        text = "".join(_encoder()(payload, 0))
    assert text == json.dumps(payload, ensure_ascii=False) == "".join(_encoder()(payload, 0))


def test_a_payload_is_sent_as_it_is() -> None:
    payload = {"z": [1.0, -0.0, 10**30, True, None, "ä\n"], "a": {"": (1,)}}
    assert payload_json(payload) == json.dumps(payload)
    payload["a"] = {}
    assert payload_json(payload) == json.dumps(payload, ensure_ascii=False)
