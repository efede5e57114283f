"""The admin of the tables `jobs` and `asr_jobs`."""

from django.contrib import admin

from jobreaper.admin import LeasedJobAdmin
from project.media.models import AsrJob, Job

admin.site.register([Job, AsrJob], LeasedJobAdmin)
