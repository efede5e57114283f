"""The code of docs/django-tasks.md."""

import sys
from types import ModuleType
from typing import Any

import pytest
from django.test import override_settings

from jobreaper.backend.compat import PACKAGE, TaskResultStatus
from jobreaper.models import Job
from jobreaper.queue.runs import Tally
from tests.docs import markdown
from tests.queue.working import once

PAGE = markdown.page("django-tasks")


def test_the_tasks_run_with_the_documented_setting(monkeypatch: Any) -> None:
    [(_, setting), (path, code)] = markdown.files(PAGE)
    assert path == "shop/tasks.py"
    given: dict[str, Any] = {}
    exec(setting, given)  # noqa: S102
    shop = ModuleType("shop.tasks")
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.tasks", shop)
    with override_settings(TASKS=given["TASKS"]):
        exec(code.replace("django.tasks", PACKAGE), vars(shop))  # noqa: S102
        [use] = [block for _, block in markdown.blocks(PAGE, "python") if "refresh" in block]
        names = {"send_invoice": shop.send_invoice}
        with pytest.raises(ValueError, match="not finished"):
            exec(use, names)  # noqa: S102
        shop.fetch.enqueue("https://example.org")
        assert Job.objects.get(type="shop.tasks.send_invoice").queue == "slow"
        assert once() == Tally(claimed=2, succeeded=2)
        result: Any = names["result"]
        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"pages": 3})
