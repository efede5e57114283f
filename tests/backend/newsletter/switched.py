"""The newsletter's settings after the switch."""

from tests.backend.newsletter.settings import *  # noqa: F403
from tests.backend.newsletter.settings import TASKS as ITS_TASKS

INSTALLED_APPS = ["django_tasks", "jobreaper", "tests.backend.newsletter"]
TASKS = {"default": {**ITS_TASKS["default"], "BACKEND": "jobreaper.backend.JobreaperBackend"}}
