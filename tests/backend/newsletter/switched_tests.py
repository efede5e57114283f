"""The settings of the newsletter's tests after the switch."""

from tests.backend.newsletter.switched import *  # noqa: F403

# django-tasks-db tries a task once.
JOBREAPER = {"JOB_MAX_ATTEMPTS": 1}
RUN_DUE = ["work", "--once"]
