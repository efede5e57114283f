"""How long what is said of a job may be."""

import pytest

from jobreaper import enqueue, enqueue_many
from tests.rows import Rows


@pytest.mark.parametrize("name", ["type", "stage", "org_id"])
def test_a_name_without_bounds_is_refused(name: str, jobs: Rows) -> None:
    with pytest.raises(ValueError, match=f"{name} has 256 characters, and 255 are the most"):
        enqueue_many([{"type": "mail"}, {"type": "mail", name: "x" * 256}])
    assert jobs.all() == {}
    longest = "\U0001f984" * 255
    enqueue_many([{"type": "mail", name: longest}])
    [job] = jobs.all().values()
    assert job[name] == longest


def test_a_dedupe_key_may_be_as_long_as_the_payload_in_it(jobs: Rows) -> None:
    key = "x" * 50_000
    assert enqueue("mail", dedupe="skip", dedupe_key=key).pk in jobs.all()
    assert enqueue_many([{}], type="mail", dedupe="skip", dedupe_key=key).skipped == 1
