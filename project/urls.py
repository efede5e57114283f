"""The admin, the tick and the health, and metrics if django-prometheus is installed."""

from importlib.util import find_spec

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("api/", include("jobreaper.http.urls")),
]

if find_spec("django_prometheus"):
    urlpatterns.append(path("", include("django_prometheus.urls")))
