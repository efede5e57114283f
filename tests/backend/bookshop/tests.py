"""The shop's own tests, as they were written for `ImmediateBackend`."""

from datetime import datetime
from typing import Any

from django.core import mail
from django.db import transaction
from django.tasks import TaskResultStatus
from django.test import TestCase, TransactionTestCase

from tests.backend.bookshop import tasks
from tests.backend.bookshop.models import Invoice, Order, Trouble


class Placing(TestCase):
    def place(self, cents: int) -> Order:
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders/", {"email": "ann@example.org", "cents": cents})
        return Order.objects.get(pk=answer.json()["order"])

    def test_an_order_is_paid_and_confirmed(self) -> None:
        self.assertEqual(self.place(900).state, "paid")
        [sent] = mail.outbox
        self.assertEqual(sent.to, ["ann@example.org"])
        self.assertFalse(Trouble.objects.exists())

    def test_a_card_that_is_refused_is_trouble(self) -> None:
        self.assertEqual(self.place(99).state, "new")
        self.assertEqual(mail.outbox, [])
        trouble = Trouble.objects.get()
        self.assertEqual((trouble.task, trouble.what), ("charge", "CardRefused"))


class Tasks(TestCase):
    def test_a_result_has_what_the_task_returned(self) -> None:
        order = Order.objects.create(email="ann@example.org", cents=900)
        coupons = [{"code": "ä\U0001f984", "cents": 0, "tags": [None, 1.5, {}]}]
        result = tasks.charge.enqueue(order.pk, coupons=coupons)
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, {"paid": 900, "coupons": coupons})
        self.assertEqual((result.args, result.kwargs), ([order.pk], {"coupons": coupons}))
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.finished_at)

    def test_a_task_that_fails_has_one_attempt_and_its_error(self) -> None:
        order = Order.objects.create(email="ann@example.org", cents=0)
        result = tasks.charge.enqueue(order.pk, coupons=[{"cents": 1}])
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual(result.attempts, 1)
        [error] = result.errors
        self.assertIs(error.exception_class, tasks.CardRefused)
        with self.assertRaises(ValueError):
            result.return_value  # noqa: B018

    async def test_a_coroutine_enqueues_a_coroutine(self) -> None:
        result = await tasks.ask_the_warehouse.aenqueue("Emma")
        self.assertEqual(result.return_value, ["Emma", "in stock"])

    def test_a_task_knows_itself(self) -> None:
        result = tasks.who_am_i.enqueue()
        self.assertEqual(result.return_value, [result.id, 1])

    def test_what_is_no_json_is_refused(self) -> None:
        value: Any
        for value in (datetime.now(), {1}, object()):
            with self.assertRaises(TypeError):
                tasks.confirm.enqueue(value)


class Invoices(TransactionTestCase):
    def test_a_number_is_given_once(self) -> None:
        first, second = (tasks.number_invoice.enqueue("2026-1") for _ in range(2))
        self.assertEqual(first.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(second.status, TaskResultStatus.FAILED)
        self.assertEqual(second.errors[0].exception_class.__name__, "IntegrityError")
        self.assertEqual(Invoice.objects.count(), 1)

    def test_a_task_runs_within_its_callers_transaction(self) -> None:
        with transaction.atomic():
            self.assertEqual(tasks.number_invoice.enqueue("1").status, TaskResultStatus.SUCCESSFUL)
            transaction.set_rollback(True)
        self.assertFalse(Invoice.objects.exists())
