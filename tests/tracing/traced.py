"""Two traced processes: `python -m tests.tracing.traced` makes a job as a request would, and Celery
(`-A tests.tracing.traced`) runs it. Each writes its spans to a file as they end, a line a span.
"""

import os
import signal
from typing import Any

import django

django.setup()

from celery import shared_task  # noqa: E402
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import (  # noqa: E402
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)

from jobreaper import Lease, LeasedTask  # noqa: E402
from project.celery import app  # noqa: E402
from project.media.models import Job  # noqa: E402

STAGE = "traced"

app.conf.task_default_queue = os.environ["TRACED_QUEUE"]

provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(
        ConsoleSpanExporter(
            out=open(os.environ["TRACED_SPANS"], "a"),  # noqa: SIM115  for the process's life
            formatter=lambda span: f"{span.to_json(indent=None)}\n",
        )
    )
)
trace.set_tracer_provider(provider)


@shared_task(name="tests.traced", base=LeasedTask, model="media.Job", stage=STAGE)
def traced(job: Any, lease: Lease) -> None:
    """Finish the job; die in the middle of it where the job says so."""
    if job.payload.get("dies_at_attempt") == lease.job.attempt_count:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with trace.get_tracer("web").start_as_current_span("request"):
        print(Job.objects.create(stage=STAGE, payload={"dies_at_attempt": 1}).pk)
