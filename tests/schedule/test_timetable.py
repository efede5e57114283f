"""Times of schedules, in zones whose clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.timetable import timetable

BERLIN = "Europe/Berlin"


def local(cron: str, after: datetime, number: int) -> list[str]:
    """The next times after a moment, as clocks in Berlin show them."""
    times = timetable("x", {"cron": cron}, timezone=BERLIN).times_after(after)
    shown = (at.astimezone(ZoneInfo(BERLIN)) for at in islice(times, number))
    return [f"{at:%d %H:%M%z}" for at in shown]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # On 29 March, two o'clock is three o'clock.
        ("30 2 * * *", (2026, 3, 28, 12), ["29 03:00+0200", "30 02:30+0200"]),
        ("0 3 * * *", (2026, 3, 28, 12), ["29 03:00+0200", "30 03:00+0200"]),
        ("30 * * * *", (2026, 3, 29, 0), ["29 01:30+0100", "29 03:30+0200"]),
        # On 25 October, there are two hours from two to three.
        ("30 2 * * *", (2026, 10, 24, 12), ["25 02:30+0200", "26 02:30+0100"]),
        ("30 * * * *", (2026, 10, 25, 0), ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
        ("0 6 * * 1-5", (2026, 10, 23, 12), ["26 06:00+0100", "27 06:00+0100"]),
        ("0 0 L * *", (2026, 2, 1), ["28 00:00+0100", "31 00:00+0200"]),
        ("0 0 29 2 *", (2026, 1, 1), ["29 00:00+0100"]),
    ],
)
def test_the_hour_that_is_skipped_and_the_one_that_comes_twice(
    cron: str, after: tuple[int, ...], expected: list[str]
) -> None:
    moment = datetime(*after, tzinfo=UTC)  # type: ignore[arg-type,misc]
    assert local(cron, moment, len(expected)) == expected


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "15 */2 * * *", "0 0 * * 0", "59 23 L * *"]),
    st.sampled_from([BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
)
def test_forwards_and_backwards_are_the_same_times(cron: str, zone: str, moment: datetime) -> None:
    times = timetable("x", {"cron": cron}, timezone=zone)
    first, second = islice(times.times_after(moment), 2)
    assert moment < first < second
    assert times.after(first) == second
    assert times.last_until(first) == first
    assert times.last_until(second - timedelta(microseconds=1)) == first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "it has no cron"),
        ({"cron": "* * * *"}, "its cron is bad: it must have five fields"),
        ({"cron": "* * * * * *"}, "its cron is bad: it must have five fields"),
        ({"cron": "61 * * * *"}, "its cron is bad: it cannot be read (Bad minute)"),
        ({"cron": "0 0 30 2 *"}, "its cron is bad: it cannot be read (Bad day-of-month)"),
        ({"cron": 5}, "its cron is bad: it must be text"),
        ({"cron": "@daily"}, "its cron is bad: it must have five fields"),
        ({"timezone": "Mars"}, "its timezone is bad: there is no time zone 'Mars'"),
        ({"timezone": "../../etc/passwd"}, "its timezone is bad: there is no time zone"),
        ({"payload": {1}}, "its payload is bad: it must be JSON"),
        ({"payload": float("nan")}, "its payload is bad: it must be JSON"),
        ({"catch_up": "some"}, "its catch_up is bad: it must be one of last, all, none"),
        ({"priority": 2**15}, "its priority is bad: it must be a whole number"),
        ({"overlap": "no idea"}, "its overlap is bad: it must be True or False"),
        ({"every": "5m"}, "it has the unknown key 'every'; keys are type, cron"),
    ],
)
def test_what_is_bad_is_named(options: dict[str, Any], said: str) -> None:
    given = options if options.keys() <= {"cron"} else {"cron": "* * * * *", **options}
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the message is what counts
        timetable("x", given, timezone="UTC")
    assert str(raised.value).startswith(said)
