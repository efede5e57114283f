"""The vocabulary hangs together."""

import pytest

from jobreaper.states import TERMINAL, TRANSITIONS, EventType, FailCode, Status, sources


def test_every_status_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_a_success_is_never_taken_back() -> None:
    assert TRANSITIONS[Status.SUCCESS] == frozenset()


def test_only_a_claim_leads_to_processing() -> None:
    assert sources(Status.PROCESSING) == (Status.QUEUED,)


@pytest.mark.parametrize("ended", [Status.FAILED, Status.CANCELLED])
def test_a_failed_or_cancelled_job_can_only_be_queued_again(ended: Status) -> None:
    assert TRANSITIONS[ended] == {Status.QUEUED}


def test_a_terminal_status_leads_to_no_other_terminal_status() -> None:
    assert all(not TRANSITIONS[status] & TERMINAL for status in TERMINAL)


@pytest.mark.parametrize("status", Status)
def test_sources_are_the_transitions_read_backwards(status: Status) -> None:
    assert set(sources(status)) == {s for s in Status if status in TRANSITIONS[s]}


def test_the_reaper_has_an_event_for_every_code_it_fails_a_job_with() -> None:
    codes = set(FailCode) - {FailCode.WORKER_LOST}
    assert {f"reaper:failed({code})" for code in codes} <= set(EventType)


@pytest.mark.parametrize("event", EventType)
def test_an_event_type_says_who_acted(event: EventType) -> None:
    assert event.partition(":")[0] in {"reaper", "job", "admin"}
