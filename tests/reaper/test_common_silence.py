"""Many that fall silent at once have not died each by itself: the decision, case by case."""

import pytest
from django.db import connection
from psycopg.sql import SQL

from jobreaper.db import fetch
from jobreaper.reaper.hold import common_silence
from jobreaper.tables.statements.silence import decision

pytestmark = pytest.mark.django_db

CASES = [
    pytest.param([], 0, False, id="nobody is silent"),
    pytest.param([5.0], 0, False, id="the only worker is silent"),
    pytest.param([5.0, 5.1], 0, False, id="both of two are silent"),
    pytest.param([5.0, 5.1, 5.2], 0, True, id="all of three are silent"),
    pytest.param([5.0, 5.1, 5.2], 2, True, id="three of five"),
    pytest.param([5.0, 5.1, 5.2], 3, False, id="half of them"),
    pytest.param([5.0, 5.1, 5.2], 40, False, id="a node out of many"),
    pytest.param([5.0, 20.0, 35.1], 0, False, id="one after another"),
    pytest.param([5.0, 20.0, 20.0], 0, True, id="just within a heartbeat of each other"),
    pytest.param([5.0, 20.1, 20.2, 20.3], 2, True, id="one died before"),
    pytest.param([600.0] * 50 + [5.0] * 3, 4, True, id="those long dead do not count as well"),
    pytest.param([600.0, 900.0, 1200.0, 5.0], 0, False, id="three died long ago, one now"),
]

# Seconds of silence and leases of each silent worker, and the leases of each that is well.
CASES_WITH_LEASES = [
    pytest.param([(5.0, 10)], [], False, id="one worker with many leases"),
    pytest.param([(5.0, 1), (6.0, 2)], [], True, id="three leases of both workers"),
    pytest.param([(5.0, 2), (6.0, 2)], [1, 1, 1], True, id="most of the leases"),
    pytest.param([(5.0, 1), (6.0, 1), (7.0, 1)], [9, 9], True, id="most of the workers"),
    pytest.param([(5.0, 2), (6.0, 2)], [2, 2], False, id="half of each"),
    pytest.param([(5.0, 9), (30.0, 9)], [], False, id="not at the same time"),
]


def by_sql(silent_sec: list[float], leases: list[int], well: list[int]) -> bool:
    """Return what a pass decides."""
    statement = SQL(
        "WITH workers AS ("
        " SELECT statement_timestamp() - make_interval(secs => sec) AS seen_at, leases,"
        "        true AS is_silent, true AS is_due"
        "   FROM unnest(%(silent_sec)s::float8[], %(leases)s::int[]) AS silent (sec, leases)"
        "  UNION ALL"
        " SELECT statement_timestamp(), leases, false, false"
        "   FROM unnest(%(well)s::int[]) AS well (leases)), "
        "{common_silence} SELECT EXISTS (SELECT FROM common) AS is_common"
    )
    values = {"silent_sec": silent_sec, "leases": leases, "well": well, "heartbeat_sec": 15}
    text = statement.format(**decision(SQL("true"))).as_string(None)
    [(is_common,)] = fetch(connection, text, values)
    return bool(is_common)


@pytest.mark.parametrize(("silent_sec", "well", "is_common"), CASES)
def test_one_cause(silent_sec: list[float], well: int, is_common: bool) -> None:
    assert common_silence(silent_sec, well=well, within_sec=15) is is_common
    assert common_silence(silent_sec[::-1], well=well, within_sec=15) is is_common
    assert by_sql(silent_sec, [1] * len(silent_sec), [1] * well) is is_common


@pytest.mark.parametrize(("silent", "well", "is_common"), CASES_WITH_LEASES)
def test_one_cause_by_leases(
    silent: list[tuple[float, int]], well: list[int], is_common: bool
) -> None:
    silent_sec, leases = [sec for sec, _ in silent], [count for _, count in silent]
    by_python = common_silence(
        silent_sec, well=len(well), within_sec=15, leases=leases, leases_of_well=sum(well)
    )
    assert by_python is is_common
    assert by_sql(silent_sec, leases, well) is is_common
