"""The shop as its authors run it."""

import os

from project.database import database_from_url

SECRET_KEY = "insecure-for-tests-only"
INSTALLED_APPS = ["tests.backend.bookshop"]
ROOT_URLCONF = "tests.backend.bookshop.urls"
DATABASES = {"default": database_from_url(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "django.tasks.backends.immediate.ImmediateBackend",
        "QUEUES": ["default", "payments"],
    }
}
