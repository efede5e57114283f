"""The test settings, with the handlers of this package."""

import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as WITHOUT_HANDLERS

INSTALLED_APPS = [*WITHOUT_HANDLERS, "tests.queue"]

JOBREAPER: dict[str, Any] = {"STAGES": {}}
# Of the stage "brief". It is not there for every test, since it makes workers give back sooner what
# waits for its turn.
if "MAX_RUNTIME_SEC" in os.environ:
    JOBREAPER["STAGES"]["brief"] = {"max_runtime": os.environ["MAX_RUNTIME_SEC"]}
if "STALL_AFTER_SEC" in os.environ:
    JOBREAPER["STAGES"]["crawl"] = {"stall_after": os.environ["STALL_AFTER_SEC"], "backoff": [0.1]}
