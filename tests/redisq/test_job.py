"""Jobs in their lists: every language's, and what no job is."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.exceptions import MalformedJob
from jobreaper.redisq.job import LARGEST_ENTRY, LARGEST_NUMBER, Job, now, parse

# Everything but halves of surrogate pairs, which are no characters.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = TEXT.filter(bool)
JOBS = st.builds(
    Job,
    id=NAME,
    filepath=NAME,
    filesize=st.integers(0, LARGEST_NUMBER),
    priority=TEXT,
    retries=st.integers(0, 1000),
    creation_time=st.builds(now) | st.just(""),
    trace_id=TEXT,
    span_id=TEXT,
    origin_queue=TEXT,
    extra=st.dictionaries(
        NAME.map(lambda name: f"x-{name}"), TEXT | st.integers() | st.lists(st.none())
    ),
)


@given(JOBS)
def test_a_job_comes_back_as_it_was(job: Job) -> None:
    assert parse(job.encode()) == job


def test_an_entry_is_one_line_with_the_documented_keys() -> None:
    entry = Job(id="1", filepath="/a\nb", filesize=3, priority="low", creation_time=now()).encode()
    assert b"\n" not in entry
    assert list(json.loads(entry)) == [
        "id",
        "filepath",
        "filesize",
        "priority",
        "retries",
        "creation_time",
        "trace_id",
        "span_id",
        "origin_queue",
    ]


def test_a_foreign_program_has_to_say_little() -> None:
    job = parse(b'{"id": "7", "filepath": "/data/a.pdf", "span_id": null, "filesize": 12.0}')
    assert job == Job(id="7", filepath="/data/a.pdf", filesize=12)


def test_keys_of_others_stay_with_a_job_that_is_tried_again() -> None:
    job = parse(b'{"id": "7", "filepath": "/a", "tenant": {"n": 1}}')
    again = parse(replace(job, retries=job.retries + 1).encode())
    assert (again.retries, again.extra) == (1, {"tenant": {"n": 1}})


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "id is missing"),
        (b'{"id": "1"}', "filepath is missing"),
        (b'{"id": "", "filepath": "/a"}', "id is missing"),
        (b'{"id": 1, "filepath": "/a"}', "id is not text"),
        (b'{"id": "1", "filepath": ["/a"]}', "filepath is not text"),
        (b'{"id": "1", "filepath": "/a", "retries": -1}', "retries is not between"),
        (b'{"id": "1", "filepath": "/a", "retries": true}', "retries is not a whole"),
        (b'{"id": "1", "filepath": "/a", "retries": 0.5}', "retries is not a whole"),
        (b'{"id": "1", "filepath": "/a", "filesize": NaN}', "not JSON"),
        (b'{"id": "1", "filepath": "/a", "filesize": 1e999}', "filesize is not a whole"),
        (b'{"id": "1", "filepath": "/a", "filesize": ' + b"9" * 30 + b"}", "not between"),
        (b'{"id": "1", "filepath": "/a", "filesize": ' + b"9" * 9000 + b"}", "not JSON"),
        (b'{"id": "1", "filepath": "/a", "creation_time": "today"}', "creation_time"),
        (b'{"id": "1", "filepath": "/a\\udcff"}', "not Unicode"),
        (b'{"id": "1", "filepath": "/a", "x": ["\\ud800"]}', "not Unicode"),
        (b'{"id": "1", "x": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", "nested too deeply"),
        (b'{"id": "' + b"x" * LARGEST_ENTRY + b'"}', "bytes"),
    ],
    ids=range(23),
)
def test_what_is_no_job_is_told_apart_without_quoting_it(entry: bytes, why: str) -> None:
    with pytest.raises(MalformedJob, match=why) as caught:
        parse(entry)
    assert len(str(caught.value)) < 100


@given(st.binary() | st.recursive(st.none() | TEXT, st.lists).map(lambda x: json.dumps(x).encode()))
def test_nothing_that_is_pushed_raises_another_error(entry: bytes) -> None:
    with suppress(MalformedJob):
        parse(entry)


def test_times_have_nanoseconds() -> None:
    job: dict[str, Any] = {"id": "1", "filepath": "/a", "creation_time": now()}
    assert len(parse(json.dumps(job).encode()).creation_time) == len(
        "2026-11-28T22:30:00.123456789Z"
    )
