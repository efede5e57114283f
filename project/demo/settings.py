"""The host project's settings for the demo: leases that are short enough to watch, and its own
database and queue, so that it does not touch anything else on your servers.
"""

import os

# These override what you have set in the environment.
os.environ |= {
    "DEFAULT_LEASE_SEC": "6",
    "HEARTBEAT_SEC": "1",
    "RECOVERY_GRACE_SEC": "2",
    "REAPER_INTERVAL_SEC": "2",
    "PRESENCE_GRACE_SEC": "1",
    "DISPATCH_INTERVAL_SEC": "1",
    "DISPATCH_AGAIN_SEC": "5",
    "JOB_MAX_ATTEMPTS": "3",
    "JOB_RETRY_BACKOFF_MS_BASE": "1000",
    "JOB_RETRY_BACKOFF_MS_MAX": "4000",
    "DJANGO_DEBUG": "1",
    "DJANGO_ALLOWED_HOSTS": "localhost,127.0.0.1",
}

from project.demo import MEDIA_QUEUE, QUEUE
from project.settings import *  # noqa: F403
from project.settings import DATABASES

DATABASES["default"]["NAME"] = "jobreaper_demo"

CELERY_TASK_DEFAULT_QUEUE = QUEUE
CELERY_TASK_ROUTES = {"project.media.tasks.*": {"queue": MEDIA_QUEUE}}
# A message that waits in a busy worker is not available to an idle one.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Celery workers that share a broker communicate; these must not.
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
