"""The test settings, with the handlers of this package."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as WITHOUT_HANDLERS

INSTALLED_APPS = [*WITHOUT_HANDLERS, "tests.queue"]
