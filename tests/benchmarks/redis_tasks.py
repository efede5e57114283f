"""The Celery app whose no-op task `test_redis_queue.py` compares."""

from celery import Celery

from tests.benchmarks.noop import noop

app = Celery("no-op")
app.conf.update(
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    task_default_queue="bench-celery",
)
task = app.task(name="noop", ignore_result=True)(noop)
