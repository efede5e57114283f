"""`await aenqueue(...)` and `await aenqueue_many(...)`."""

from collections.abc import Iterator
from typing import Any

import pytest

from jobreaper import BadPayload, aenqueue, aenqueue_many
from jobreaper.models import Job
from tests.loops import in_a_loop
from tests.rows import Rows

pytestmark = pytest.mark.usefixtures("transactional_db")


def test_jobs_are_enqueued_from_a_coroutine(jobs: Rows) -> None:
    def again() -> Iterator[dict[str, Any]]:
        for job in Job.objects.all():
            yield {"payload": job.payload}

    async def work() -> list[Any]:
        first = await aenqueue("mail", {"n": 1}, priority=3)
        many = await aenqueue_many(again(), type="mail", dedupe="skip")
        with pytest.raises(BadPayload):
            await aenqueue("mail", object())
        return [first.pk, *many.ids]

    made = in_a_loop(work)
    rows = jobs.all()
    assert rows.keys() == set(made)
    assert [rows[pk]["payload"] for pk in made] == [{"n": 1}] * 2
    assert rows[made[0]]["priority"] == 3
