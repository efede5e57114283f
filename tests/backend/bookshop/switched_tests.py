"""The settings of the shop's tests after the switch."""

from tests.backend.bookshop.switched import *  # noqa: F403
from tests.backend.bookshop.switched import TASKS as ITS_TASKS

TASKS = {"default": {**ITS_TASKS["default"], "BACKEND": "jobreaper.testing.EagerBackend"}}
