"""The newsletter's own tests, as they were written for django-tasks-db."""

from io import StringIO
from typing import Any

from django.conf import settings
from django.core import mail
from django.core.management import call_command
from django.test import TransactionTestCase
from django_tasks import TaskResultStatus
from django_tasks.exceptions import InvalidTaskError
from django_tasks.signals import task_enqueued, task_finished, task_started

from tests.backend.newsletter import tasks
from tests.backend.newsletter.models import Delivery, Issue, Subscriber


class NewsletterTestCase(TransactionTestCase):
    def setUp(self) -> None:
        self.issue = Issue.objects.create(subject="May")
        for name in ("ann", "bob"):
            Subscriber.objects.create(email=f"{name}@example.org")

    def run_due(self) -> None:
        call_command(*settings.RUN_DUE, stdout=StringIO())

    def status(self, task: str) -> Any:
        return self.client.get(f"/tasks/{task}/").json()


class Sending(NewsletterTestCase):
    def test_everybody_gets_an_issue(self) -> None:
        task = self.client.post(f"/issues/{self.issue.pk}/").json()["task"]
        self.assertEqual(self.status(task), {"status": "READY", "value": None})
        self.run_due()
        self.assertEqual(self.status(task), {"status": "SUCCESSFUL", "value": 2})
        self.assertEqual(
            sorted(Delivery.objects.values_list("email", "attempt")),
            [("ann@example.org", 1), ("bob@example.org", 1)],
        )
        self.assertEqual({sent.subject for sent in mail.outbox}, {"May"})

    def test_an_issue_for_later_waits(self) -> None:
        answer = self.client.post(f"/issues/{self.issue.pk}/", {"minutes": "5"}).json()
        self.run_due()
        self.assertEqual(self.status(answer["task"])["status"], "READY")
        self.assertFalse(Delivery.objects.exists())

    def test_a_task_that_does_not_exist_is_not_found(self) -> None:
        for key in ("123", "9d0cd3c3-3ee3-47a2-8f1e-ae7d5ecf1a4f"):
            self.assertEqual(self.client.get(f"/tasks/{key}/").status_code, 404)


class Results(NewsletterTestCase):
    def test_an_address_that_bounces_has_failed(self) -> None:
        result = tasks.deliver.enqueue(self.issue.pk, email="eve@example.invalid")
        self.run_due()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        [error] = result.errors
        self.assertIs(error.exception_class, tasks.Bounced)
        self.assertTrue(error.traceback.endswith("Bounced: eve@example.invalid\n"))

    async def test_a_coroutine_is_a_task_too(self) -> None:
        result = await tasks.count_words.aenqueue("three small words")
        self.assertEqual((await tasks.count_words.aget_result(result.id)).id, result.id)

    def test_a_result_is_read_by_its_id(self) -> None:
        enqueued = tasks.deliver.enqueue(self.issue.pk, email="ann@example.org")
        self.run_due()
        result = tasks.deliver.get_result(enqueued.id)
        self.assertEqual(
            result.return_value,
            {"to": "ann@example.org", "issue": {"pk": self.issue.pk, "subject": "May"}},
        )
        self.assertEqual((result.task.queue_name, result.attempts), ("mail", 1))

    def test_an_unknown_queue_is_refused(self) -> None:
        with self.assertRaises(InvalidTaskError):
            tasks.count_words.using(queue_name="nowhere")

    def test_signals_tell_of_a_task(self) -> None:
        told: list[tuple[str, str]] = []
        for signal in (task_enqueued, task_started, task_finished):

            def listen(sender: Any, task_result: Any, **_: Any) -> None:
                told.append((task_result.id, task_result.status))

            signal.connect(listen, weak=False)
            self.addCleanup(signal.disconnect, listen)
        result = tasks.count_words.enqueue("one")
        self.run_due()
        states = ["READY", "RUNNING", "SUCCESSFUL"]
        self.assertEqual(told, [(result.id, state) for state in states])
