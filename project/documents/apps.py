"""The app of somebody else's table, `executor_jobs`, and its adoption."""

from django.apps import AppConfig


class DocumentsConfig(AppConfig):
    """An executor of its own protects documents, builds artifacts and anchors them."""

    name = "project.documents"
    label = "documents"
    verbose_name = "Documents"

    def ready(self) -> None:
        """Map the columns, and set how long each type may show no sign of life."""
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
            # Ten times back to the queue: the first attempt is none of those that are counted.
            max_attempts=11,
            attempts_counted="reap",
            # Its workers belong to the executor and take no leases.
            reclaim_only=True,
            functions={"reap": "reclaim_stale_jobs", "heartbeat": "update_job_heartbeat"},
        )
