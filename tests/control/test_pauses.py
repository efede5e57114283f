"""What can be paused, and what is kept of who did it and why."""

from typing import Any

import pytest

from jobreaper import enqueue, pause, resume
from jobreaper.control.pauses import paused
from jobreaper.models import Job, Pause

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00", "a\ud800"])
@pytest.mark.parametrize("verb", [pause, resume])
def test_a_name_that_no_stage_can_have_is_refused(name: str, verb: Any) -> None:
    with pytest.raises(ValueError, match="is bad: it"):
        verb(name)
    assert not Pause.objects.exists()


def test_the_longest_names_are_paused_and_resumed() -> None:
    name = "\U0001f984" * 255
    assert pause(name)
    assert enqueue(name, stage=name).stage == name
    assert resume(name)


def test_what_an_operator_says_is_kept_as_it_can_be_stored() -> None:
    pause("mail", by="a\x00", reason="half \ud83e, " + "x" * 50_000)
    [row] = paused()
    assert row.by == "a\\x00"
    assert row.reason is not None
    assert row.reason.startswith("half \\ud83e, xxx")
    assert "characters cut" in row.reason
    assert Job.objects.count() == 0
