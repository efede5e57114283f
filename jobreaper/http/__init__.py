"""HTTP: the tick for cron services and serverless hosts, the health for probes.

    path("api/", include("jobreaper.http.urls"))

gives ``/api/jobs/tick`` and ``/api/jobs/health``.
"""
