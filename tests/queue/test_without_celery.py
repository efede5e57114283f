"""The queue in a project that has no Celery."""

import json
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from jobreaper import enqueue, enqueue_many
from tests.processes.children import Child
from tests.rows import Rows

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("transactional_db")]

PATIENCE_SEC = 60.0

# What manage.py does, where neither Celery nor what comes with it can be imported.
MANAGE = """
import json, os, sys
sys.modules.update(dict.fromkeys(["celery", "kombu", "billiard", "django_celery_beat"]))
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", **json.loads(os.environ["SERVER"])}
    },
    INSTALLED_APPS=["jobreaper", "tests.queue"],
    USE_TZ=True,
    LOGGING={
        "version": 1,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "loggers": {"jobreaper": {"handlers": ["stderr"], "level": "INFO"}},
    },
)
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", ["work", "reap", "check"])
def test_the_commands_run_where_celery_is_not_installed(
    command: str, dsn: str, tmp_path: Path, jobs: Rows
) -> None:
    enqueue_many([{}] * 3, type="noop")
    waits = enqueue("project.media.tasks.render")
    server = conninfo_to_dict(dsn)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    environment = {
        "SERVER": json.dumps(
            {key: server[part] for key, part in named.items() if part in server}
            | {"PORT": str(server.get("port", ""))}
        )
    }
    options = [] if command == "check" else ["--once"]
    child = Child(["-c", MANAGE, command, *options], environment, tmp_path / "log")
    try:
        assert child.process.wait(PATIENCE_SEC) == 0, child.log
        assert "Traceback" not in child.log
        if command == "work":
            assert child.lines() == ["3 succeeded, 0 failed, 0 given back, 0 lost"]
            assert "{'project.media.tasks.render': 1}" in child.log
            assert jobs.row(waits.pk)["status"] == "queued"
    finally:
        child.end()
