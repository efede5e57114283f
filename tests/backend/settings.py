"""The test settings of a project whose tasks are jobs."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as WITHOUT_TASKS

INSTALLED_APPS = [*WITHOUT_TASKS, "tests.backend"]
TASKS = {"default": {"BACKEND": "jobreaper.backend.JobreaperBackend", "QUEUES": []}}
