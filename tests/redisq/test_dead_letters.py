"""The dead-letter list keeps what came, whatever it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobreaper.redisq.dead_letters import LONGEST_DETAIL, DeadLetter, decode
from jobreaper.redisq.job import Job


@given(st.binary())
def test_an_entry_comes_back_byte_for_byte(entry: bytes) -> None:
    letter = decode(DeadLetter(entry=entry, reason="malformed", queue="q", worker_id="w").encode())
    assert (letter.entry, letter.reason, letter.queue, letter.worker_id) == (
        entry,
        "malformed",
        "q",
        "w",
    )


def test_a_letter_knows_its_job_and_when_it_was_written() -> None:
    job = Job(id="1", filepath="/a")
    letter = decode(DeadLetter(entry=job.encode(), reason="failed", detail="\udcff").encode())
    assert letter.job == job
    assert letter.at.endswith("Z")
    assert letter.detail == "\udcff"


def test_a_malformed_entry_has_no_job() -> None:
    assert decode(DeadLetter(entry=b"\xff", reason="malformed").encode()).job is None


@pytest.mark.parametrize(
    "entry",
    [b"", b"x", b"[]", b"{}", b'{"entry": 1}', b'{"entry_base64": "?"}', b"[" * 100_000, b"\xff"],
)
def test_what_a_foreign_program_pushed_there_is_shown_as_it_is(entry: bytes) -> None:
    assert decode(entry) == DeadLetter(entry=entry)


def test_a_long_detail_is_cut() -> None:
    letter = decode(DeadLetter(entry=b"{}", detail="x" * 10_000).encode())
    assert len(letter.detail) == LONGEST_DETAIL
