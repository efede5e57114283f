"""What docs/queue.md says about tests of one's own code."""

import gc
import signal
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import TestCase

from jobreaper import claim, enqueue, enqueue_many, job_handler
from jobreaper.models import Job
from jobreaper.queue.runs import run_due


class InATestCase(TestCase):
    """Everything in one transaction that is rolled back."""

    def test_due_jobs_are_run_in_the_transaction_of_the_test(self) -> None:
        job_handler("of-a-test")(lambda job, lease: None)
        enqueue_many([{}] * 3, type="of-a-test")
        assert run_due(limit=10, budget_sec=5).succeeded == 3
        assert set(Job.objects.values_list("status", flat=True)) == {"success"}

    def test_a_handler_is_a_function(self) -> None:
        seen: list[Any] = []

        @job_handler("of-a-test")
        def send(job: Any, lease: Any) -> None:
            seen.append(job.pk)
            lease.finish()

        job = enqueue("of-a-test")
        send(job, claim(Job, job.pk))
        assert seen == [job.pk]


@pytest.mark.usefixtures("transactional_db")
def test_work_once_runs_what_is_committed() -> None:
    enqueue_many([{}] * 3, type="idle")
    said = StringIO()
    before = signal.getsignal(signal.SIGINT), gc.get_freeze_count()
    call_command("work", once=True, stdout=said, stderr=said)
    assert "3 succeeded" in said.getvalue()
    # Ctrl-C ends the tests that come next.
    assert (signal.getsignal(signal.SIGINT), gc.get_freeze_count()) == before
