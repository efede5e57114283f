"""The test settings, with the tasks of this package and a queue of the worker's own."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES
from tests.settings import INSTALLED_APPS as WITHOUT_TASKS

# With it, Django keeps every statement, and so none is prepared.
DEBUG = False

INSTALLED_APPS = [*WITHOUT_TASKS, "tests.celery"]

CELERY_TASK_DEFAULT_QUEUE = os.environ["LEASED_TASKS_QUEUE"]
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = float(os.environ.get("SOFT_SHUTDOWN_SEC", "0"))
# 0 is Celery's own way: a new connection for each task.
CELERY_DB_REUSE_MAX = int(os.environ.get("DB_REUSE_MAX", "0"))
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True

# The server tells the main process's sessions from its children's.
SESSION = DATABASES["default"]["OPTIONS"]
SESSION["application_name"] = CELERY_TASK_DEFAULT_QUEUE
os.register_at_fork(after_in_child=lambda: SESSION.update(application_name="child"))

if os.environ.get("NO_PIDFD"):  # as on systems other than Linux
    del os.pidfd_open

JOBREAPER = {
    # Nothing in these tests may happen because a lease ran out.
    "DEFAULT_LEASE_SEC": 300,
    "HEARTBEAT_SEC": 0.3,
    "STAGES": {
        "deed": {"backoff": [600]},
        "poison": {"backoff": [600], "max_reaps": 2},
    },
}
