"""The app of somebody else's table, `executor_jobs`, and its adoption."""

from django.apps import AppConfig


class DocumentsConfig(AppConfig):
    """Documents are protected, built into artefacts and anchored by an executor of its own."""

    name = "project.documents"
    label = "documents"
    verbose_name = "Documents"

    def ready(self) -> None:
        """Tell the reaper which column plays which part, and how long each type may be silent."""
        from jobreaper import register

        from .models import ExecutorJob

        register(
            ExecutorJob,
            columns={
                "stage": "type",
                "claimed_at": "locked_at",
                "last_heartbeat_at": "heartbeat_at",
                "attempt_count": "attempts",
                "fail_reason": "last_error",
                "updated_at": "updated_at",
            },
            words={"processing": ["running", "processing"], "failed": ["dead", "failed"]},
            ttl={
                "protect_document_v2": "5m",
                "document.protected": "5m",
                "build_artifact": "15m",
                "run_tsa": "30m",
                "submit_anchor_polygon": "60m",
                "submit_anchor_bitcoin": "60m",
            },
            max_attempts=10,
            attempts_counted="reap",
            # Its workers are the executor's own, which take no leases.
            reclaim_only=True,
            functions={"reap": "reclaim_stale_jobs", "heartbeat": "update_job_heartbeat"},
        )
