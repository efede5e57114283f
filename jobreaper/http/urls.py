"""``jobs/tick`` and ``jobs/health``, for you to include."""

from __future__ import annotations

from django.urls import path

from jobreaper.http import views

app_name = "jobreaper"

urlpatterns = [
    path("jobs/tick", views.tick, name="tick"),
    path("jobs/health", views.health, name="health"),
]
