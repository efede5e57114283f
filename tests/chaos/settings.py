"""Short leases, a queue that nobody else listens to, and a beat that needs no table."""

import os

from jobreaper import beat_schedule
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as WITHOUT_TASKS

INSTALLED_APPS = [*WITHOUT_TASKS, "tests.chaos"]

LEASE_SEC = 2.0
MAX_REAPS = 3

JOBREAPER = {
    "DEFAULT_LEASE_SEC": LEASE_SEC,
    "HEARTBEAT_SEC": 0.5,
    "REAPER_INTERVAL_SEC": 1,
    "RECOVERY_GRACE_SEC": 1.5,
    "DISPATCH_INTERVAL_SEC": 1,
    "DISPATCH_AGAIN_SEC": 3,
    "JOB_RETRY_BACKOFF_MS_BASE": 100,
    "JOB_RETRY_BACKOFF_MS_MAX": 400,
    "STAGES": {"poison": {"max_reaps": MAX_REAPS}},
}

CELERY_TASK_DEFAULT_QUEUE = os.environ.get("CHAOS_QUEUE", "chaos")
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
CELERY_BEAT_SCHEDULE = beat_schedule()
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
