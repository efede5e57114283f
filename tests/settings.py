"""The host project's settings, on servers that belong to this test run and go with it."""

import os

os.environ.setdefault("JOBREAPER_EMBEDDED", "temporary")

from project.settings import *  # noqa: F403
