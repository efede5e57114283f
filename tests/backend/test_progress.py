"""How far a task is: told through its context, seen in its result."""

from tests.backend import tasks
from tests.queue.working import once


def test_a_task_reports_through_its_context_and_its_result_says_so() -> None:
    results = [task.enqueue(7, 9) for task in (tasks.report, tasks.areport)]
    assert [result.progress for result in results] == [None, None]
    assert once().succeeded == 2
    for result in results:
        result.refresh()
        assert (result.progress, result.return_value) == ({"done": 7, "total": 9}, "reported")
        assert result.progress_at is not None
        assert result.task.get_backend().get_result(result.id) == result
