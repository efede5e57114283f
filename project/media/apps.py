from django.apps import AppConfig


class MediaConfig(AppConfig):
    """The app that owns the tables `jobs` and `asr_jobs`."""

    name = "project.media"
    label = "media"
    verbose_name = "Media"
