"""The test settings, with the tasks of this package and nothing on the network but messages."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as WITHOUT_TASKS

INSTALLED_APPS = [*WITHOUT_TASKS, "tests.benchmarks"]

CELERY_WORKER_ENABLE_REMOTE_CONTROL = False

# 0 is Celery's own way: a new connection for each task.
CELERY_DB_REUSE_MAX = int(os.environ.get("DB_REUSE_MAX", "0"))

# As in production: with DEBUG, Django keeps each query.
DEBUG = False
