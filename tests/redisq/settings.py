"""A project without a database: its jobs are in Redis, and nothing else is needed."""

SECRET_KEY = "insecure"
INSTALLED_APPS = ["django.contrib.contenttypes", "jobreaper"]
USE_TZ = True
