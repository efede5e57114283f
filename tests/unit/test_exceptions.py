"""Exceptions say what happened and are caught by one base class."""

import inspect
import pickle

import pytest

from jobreaper import exceptions
from jobreaper.exceptions import JobreaperError, LeaseLost, UnknownTable

ALL = [
    kind
    for _, kind in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", ALL)
def test_every_exception_has_the_one_base(kind: type[Exception]) -> None:
    assert issubclass(kind, JobreaperError)


def test_an_unknown_table_names_those_that_are_known() -> None:
    error = UnknownTable("job", ["jobs", "asr_jobs"])
    assert str(error) == "unknown job table 'job'; known tables: asr_jobs, jobs"
    assert isinstance(error, LookupError)


def test_an_unknown_table_among_none_says_so() -> None:
    assert str(UnknownTable("job", [])).endswith("known tables: none")


def test_a_lost_lease_carries_what_the_row_says_now() -> None:
    error = LeaseLost("lost", table="jobs", pk=7, status="queued", epoch=4)
    assert (error.table, error.pk, error.status, error.epoch) == ("jobs", 7, "queued", 4)


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("lost", table="jobs", pk=7, status="queued", epoch=4),
        UnknownTable("job", ["jobs"]),
    ],
)
def test_an_exception_survives_the_way_out_of_a_worker_process(error: Exception) -> None:
    # Celery's prefork pool pickles what a task raises.
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
