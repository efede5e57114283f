"""The shop's settings after the switch."""

from tests.backend.bookshop.settings import *  # noqa: F403
from tests.backend.bookshop.settings import INSTALLED_APPS as ITS_APPS
from tests.backend.bookshop.settings import TASKS as ITS_TASKS

INSTALLED_APPS = [*ITS_APPS, "jobreaper"]
TASKS = {"default": {**ITS_TASKS["default"], "BACKEND": "jobreaper.backend.JobreaperBackend"}}
