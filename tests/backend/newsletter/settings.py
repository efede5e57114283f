"""The newsletter as its authors run it."""

import os

from project.database import database_from_url

SECRET_KEY = "insecure-for-tests-only"
INSTALLED_APPS = ["django_tasks", "django_tasks_db", "tests.backend.newsletter"]
ROOT_URLCONF = "tests.backend.newsletter.urls"
DATABASES = {"default": database_from_url(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "django_tasks_db.DatabaseBackend",
        "QUEUES": ["default", "mail"],
    }
}
# How the tests run what is due.
RUN_DUE = ["db_worker", "--batch", "--interval=0", "--queue-name=*"]
