"""Settings of the host project. Everything that differs between machines is in the environment."""

import os
from importlib.util import find_spec
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from project import embedded
from project.database import database_from_url

BASE_DIR = Path(__file__).resolve().parent.parent

# Type checkers and linters read the settings too, and must not start servers.
NO_SERVERS = os.environ.get("JOBREAPER_NO_SERVERS") == "1"

DEBUG = os.environ.get("DJANGO_DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "insecure-for-development-only")
if not DEBUG and SECRET_KEY.startswith("insecure-"):
    raise ImproperlyConfigured("DJANGO_SECRET_KEY must be set when DJANGO_DEBUG=0")
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

HAS_BEAT = find_spec("django_celery_beat") is not None
HAS_PROMETHEUS = find_spec("django_prometheus") is not None

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *(["django_celery_beat"] if HAS_BEAT else []),
    *(["django_prometheus"] if HAS_PROMETHEUS else []),
    "jobreaper",
    "project.media",
    "project.documents",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if NO_SERVERS:
    DATABASE_URL = "postgresql:///none"
    REDIS_URL: str | None = None
else:
    DATABASE_URL = os.environ.get("DATABASE_URL") or embedded.start("postgres")
    REDIS_URL = os.environ.get("REDIS_URL") or embedded.start("redis")

DATABASES = {"default": database_from_url(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or REDIS_URL
CELERY_TIMEZONE = "UTC"
# Workers log as LOGGING says.
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
if HAS_BEAT:
    CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
elif not NO_SERVERS:
    from jobreaper.celery import beat_schedule

    CELERY_BEAT_SCHEDULE = beat_schedule()

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / ".static"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "jobreaper.logs.JsonFormatter"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": os.environ.get("DJANGO_LOG_FORMAT", "plain"),
        }
    },
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"jobreaper": {"level": "INFO"}},
}
