"""A worker of the switched newsletter is killed."""

from django.test import TransactionTestCase, override_settings

from tests.backend.killing import run_and_kill
from tests.backend.newsletter import switched, tasks
from tests.backend.newsletter.models import Issue


class Killed(TransactionTestCase):
    @override_settings(JOBREAPER={})
    def test_its_task_runs_again(self) -> None:
        issue = Issue.objects.create(subject="May")
        result = run_and_kill(tasks.print_issue, issue, switched.__name__)
        self.assertEqual(result.return_value, "May")
        self.assertEqual(len(set(result.worker_ids)), 2)
        issue.refresh_from_db()
        self.assertEqual(issue.state, "printed")
