"""Single values of the settings: each is parsed, or refused in words."""

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobreaper import values
from jobreaper.policies import LONGEST_MS
from jobreaper.states import OnExpiry

PARSERS: list[Callable[[object], object]] = [
    values.parse_duration,
    values.positive_duration,
    values.milliseconds,
    values.count,
    values.factor,
    values.backoff,
    values.on_expiry,
    values.text,
    values.priority,
    values.token,
]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.from_regex(r"\d{1,4}\s?(ms|s|m|h|d|w)", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def refusal(parse: Callable[[object], object], value: object) -> str | None:
    try:
        parse(value)
    except ValueError as error:
        return str(error)
    return None


@given(parse=st.sampled_from(PARSERS), value=anything)
@example(parse=values.parse_duration, value=10**400)
@example(parse=values.milliseconds, value=10**400)
@example(parse=values.factor, value=10**400)
def test_a_parser_returns_a_value_or_says_why_not(
    parse: Callable[[object], object], value: object
) -> None:
    assert (refusal(parse, value) or "it must").startswith("it must")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        (" 1.5 ", 1.5),
        ("250ms", 0.25),
        ("30s", 30),
        ("10m", 600),
        ("4h", 14_400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("10 M", 600),
        ("366d", 366 * 86_400),
    ],
)
def test_a_duration_is_seconds_or_text_with_units(value: object, seconds: float) -> None:
    assert values.parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [None, True, [], "", "soon", "m", "10x", "5m later", "m10", -1, "-1", math.inf, "nan", "367d"],
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it must"):
        values.parse_duration(value)


def test_a_positive_duration_is_not_nothing() -> None:
    assert values.positive_duration("1ms") == pytest.approx(0.001)
    with pytest.raises(ValueError, match="more than 0"):
        values.positive_duration(0)


@given(st.integers(1, LONGEST_MS))
@example(4031)  # 4031 / 1000 * 1000 is a little less in floating point
def test_a_bare_number_of_milliseconds_stays_what_it_is(number: int) -> None:
    assert values.milliseconds(number) == number
    assert values.milliseconds(str(number)) == number


@pytest.mark.parametrize(("value", "whole"), [("30s", 30_000), ("2m", 120_000), ("1.5s", 1500)])
def test_milliseconds_may_be_text_with_units(value: str, whole: int) -> None:
    assert values.milliseconds(value) == whole


@pytest.mark.parametrize("value", [0, -1, "0", "never", None, True, LONGEST_MS + 1])
def test_what_is_no_number_of_milliseconds_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it must"):
        values.milliseconds(value)


@pytest.mark.parametrize(("value", "number"), [(1, 1), ("3", 3), (2**31 - 1, 2**31 - 1)])
def test_a_count_is_a_whole_number(value: object, number: int) -> None:
    assert values.count(value) == number


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, "1.5", "many", None, True])
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it must"):
        values.count(value)


@pytest.mark.parametrize(("value", "number"), [(0, 0), (1.5, 1.5), ("12", 12), (10**6, 10**6)])
def test_a_factor_is_a_number(value: object, number: float) -> None:
    assert values.factor(value) == number


@pytest.mark.parametrize("value", [-0.1, 1_000_001, "much", None, True, math.nan, math.inf])
def test_what_is_no_factor_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it must"):
        values.factor(value)


def test_a_backoff_is_a_list_of_durations() -> None:
    assert values.backoff(["30s", 120, "10m", 0]) == (30_000, 120_000, 600_000, 0)


@given(st.lists(st.integers(0, LONGEST_MS), min_size=1, max_size=4))
@example([4031, 65_629_877])
def test_a_backoff_keeps_every_millisecond(delays: list[int]) -> None:
    assert values.backoff([delay / 1000 for delay in delays]) == tuple(delays)


@pytest.mark.parametrize("value", [[], "30s", 30, None, ["soon"], [-1]])
def test_what_is_no_backoff_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^it must"):
        values.backoff(value)


def test_an_expiry_is_a_word_of_the_vocabulary() -> None:
    assert values.on_expiry("fail") is OnExpiry.FAIL
    assert values.on_expiry(OnExpiry.REQUEUE) is OnExpiry.REQUEUE
    with pytest.raises(ValueError, match="requeue, fail"):
        values.on_expiry("retry")


@pytest.mark.parametrize("wrong", ["", "yes", "2", 1, 0, None])
def test_a_switch_is_on_or_off(wrong: object) -> None:
    assert (values.switch(True), values.switch(" on ")) == (True, True)
    assert (values.switch(False), values.switch("0")) == (False, False)
    with pytest.raises(ValueError, match="True or False"):
        values.switch(wrong)


def test_a_blank_token_is_none() -> None:
    assert values.token("  ") is None
    assert values.token(" secret ") == "secret"


@pytest.mark.parametrize("wrong", ["s\u00e9cret", "se\x00cret", "se\ncret", "\u200b"])
def test_a_token_that_a_header_cannot_carry_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="ASCII"):
        values.token(wrong)


def test_a_token_is_text() -> None:
    with pytest.raises(ValueError, match="text"):
        values.token(7)


def test_an_optional_value_may_be_none() -> None:
    assert values.optional(values.count)(None) is None
    assert values.optional(values.count)("2") == 2
    with pytest.raises(ValueError, match="between"):
        values.optional(values.count)(0)
