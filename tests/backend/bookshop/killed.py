"""A worker of the switched shop is killed."""

from django.test import TransactionTestCase, override_settings

from tests.backend.bookshop import switched, tasks
from tests.backend.bookshop.models import Order
from tests.backend.killing import run_and_kill


class Killed(TransactionTestCase):
    @override_settings(TASKS=switched.TASKS)
    def test_its_task_runs_again(self) -> None:
        order = Order.objects.create(email="ann@example.org", cents=900)
        result = run_and_kill(tasks.print_label, order, switched.__name__)
        self.assertEqual(result.return_value, "label for ann@example.org")
        self.assertEqual(len(set(result.worker_ids)), 2)
        [error] = result.errors
        self.assertEqual(error.exception_class.__name__, "LeaseLost")
        order.refresh_from_db()
        self.assertEqual(order.state, "sent")
