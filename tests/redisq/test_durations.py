"""Durations as people write them, and as they are printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.redisq.durations import LONGEST_SEC, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("5s", 5),
        ("1m30s", 90),
        ("1h2m3s4ms", 3723.004),
        ("1.5s", 1.5),
        (" 2s ", 2),
        ("0", 0),
        (0, 0),
        ("0s", 0),
    ],
)
def test_a_duration_has_a_unit(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", 5, 1.5, "-5s", "5 s", "5sec", "s", "1m 30", "٣s", True, False, None, [], "5S"]
)
def test_what_has_no_unit_could_mean_anything_and_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="with a unit, such as 200ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["8761h", "9" * 400 + "s"])
def test_more_than_a_year_is_a_typing_error(text: str) -> None:
    with pytest.raises(ValueError, match="longer than a year"):
        parse_duration(text)


@given(st.integers(0, int(LONGEST_SEC * 1000)))
def test_what_is_printed_reads_back_as_the_same(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, abs=1e-6
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.2, "200ms"), (90, "1m30s"), (30, "30s"), (3600, "1h"), (0.0005, "0.5ms")],
)
def test_a_duration_is_printed_as_people_write_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
