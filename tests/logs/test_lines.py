"""The lines: what may stand in them, what must not, and how JSON shows them."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jobreaper import cancel, claim, logs, reap
from jobreaper.celery import children
from jobreaper.celery.dispatcher import dispatch
from jobreaper.identity import id_of_child
from jobreaper.logs import EVENTS, JsonFormatter
from project.media.models import Job
from tests.docs import markdown
from tests.logs.conftest import Lines, do_everything

pytestmark = pytest.mark.usefixtures("transactional_db")

SECRET = "s3cret-that-no-log-may-hold"


def pairs(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "jobreaper", {})
    return found


def test_every_event_of_the_list_is_logged_as_the_list_says(lines: Lines) -> None:
    do_everything(SECRET)
    seen: dict[str, set[str]] = {}
    for record in lines():
        if event := pairs(record).get("event"):
            keys, expected = set(pairs(record)) - {"event"}, EVENTS[event]
            assert record.name == f"jobreaper.{expected.logger}"
            assert record.levelno in (expected.level, logging.DEBUG)
            seen.setdefault(event, set()).update(keys)
    assert seen == {event: set(known.keys) for event, known in EVENTS.items()}


def test_no_line_holds_a_secret_of_a_job(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    do_everything(SECRET)
    assert len(lines()) > 30
    formatter = JsonFormatter()
    for record in lines():
        assert SECRET not in record.getMessage()
        assert SECRET not in formatter.format(record)
        assert SECRET not in repr(vars(record))
    # Nor did a receiver fail, which Django would have logged with a traceback.
    assert [r for r in caplog.records if r.name == "django.dispatch"] == []


def test_the_page_has_the_same_table() -> None:
    rows = markdown.rows(markdown.section(markdown.page("logging"), "Events"))
    said = {}
    for event, logger, level, keys, _ in rows:
        [name] = markdown.code(event)
        said[name] = (markdown.code(logger), level, markdown.code(keys))
    assert said == {
        event: ([known.logger], logging.getLevelName(known.level), list(known.keys))
        for event, known in EVENTS.items()
    }


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("clip", "clip"),
        ("größe", "größe"),
        ("große Größe", '"große Größe"'),
        ("", '""'),
        ("e\x1b[31m", '"e\\u001b[31m"'),
        ("a\x07\x7f\x9b", '"a\\u0007\\u007f\\u009b"'),
        ("a\u202eb\u2028", '"a\\u202eb\\u2028"'),
    ],
)
def test_a_value_is_one_word_and_tells_a_terminal_nothing(
    value: str, word: str, lines: Lines
) -> None:
    logs._log("job_claimed", stage=value)
    [record] = lines()
    assert record.getMessage() == f"job_claimed stage={word}"
    assert json.loads(word if word[0] == '"' else f'"{word}"') == value


class TestUnknownKeys:
    """A key that is not on the list."""

    def test_it_is_an_error_in_tests(self, lines: Lines) -> None:
        with pytest.raises(ValueError, match=r"job_claimed must not be logged with \['payload'\]"):
            logs._log("job_claimed", job=1, payload=SECRET)
        assert lines() == []

    def test_it_is_dropped_in_production(
        self, lines: Lines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "strict", False)
        logs._log("job_claimed", job=1, payload=SECRET)
        [record] = lines()
        assert record.getMessage() == "job_claimed job=1"
        assert pairs(record) == {"event": "job_claimed", "job": 1}

    def test_nothing_is_strict_unless_it_is_asked_for(self) -> None:
        script = "from jobreaper import logs; assert logs.strict is False"
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)


class TestJson:
    """`JsonFormatter`."""

    def formatted(self, record: logging.LogRecord) -> dict[str, Any]:
        text = JsonFormatter().format(record)
        assert "\n" not in text
        found: dict[str, Any] = json.loads(text)
        return found

    def test_an_event_is_its_pairs(self, lines: Lines) -> None:
        lease = claim(Job, Job.objects.create(stage="clip").pk, worker="host:1:abc")
        assert lease is not None
        line = self.formatted(lines()[-1])
        assert line.pop("at").endswith("Z")
        assert line == {
            "level": "INFO",
            "logger": "jobreaper.leases",
            "event": "job_claimed",
            "table": "jobs",
            "job": lease.pk,
            "stage": "clip",
            "attempt": 1,
            "epoch": 1,
            "worker": "host:1:abc",
        }

    def test_what_is_unknown_is_left_out(self, lines: Lines) -> None:
        claim(Job, Job.objects.create().pk)
        assert "stage" not in self.formatted(lines()[-1])

    @pytest.mark.parametrize("by", ["two\nlines", 'says "so"', "Zoë", "\ud800", ""])
    def test_any_text_is_one_line(self, by: str, lines: Lines) -> None:
        cancel(Job, [Job.objects.create().pk], by=by)
        line = self.formatted(lines()[-1])
        assert line["event"] == "job_changed_by_hand"
        assert line["by"] == (by if by != "\ud800" else "\\ud800")

    def test_every_event_can_be_written(self, lines: Lines) -> None:
        do_everything(SECRET)
        for record in lines():
            self.formatted(record)

    def test_a_line_that_is_no_event_is_its_message(self) -> None:
        record = logging.LogRecord("any", logging.INFO, "", 0, "hello %s", ("you",), None)
        line = self.formatted(record)
        assert (line["logger"], line["message"]) == ("any", "hello you")
        assert "event" not in line

    def test_an_exception_is_told_with_its_traceback(self) -> None:
        try:
            raise KeyError("missing")
        except KeyError:
            info = sys.exc_info()
        record = logging.LogRecord("any", logging.ERROR, "", 0, "failed", (), info)
        assert "KeyError: 'missing'" in self.formatted(record)["exception"]

    def test_a_celery_worker_keeps_to_it(self) -> None:
        script = (
            "import logging; from project.celery import app; app.loader.init_worker();"
            "app.log.setup(loglevel='INFO'); logging.getLogger('jobreaper.leases').info('hello')"
        )
        environment = {
            **os.environ,
            "DJANGO_LOG_FORMAT": "json",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        result = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        said = [json.loads(line)["message"] for line in result.stderr.splitlines()]
        assert "hello" in said

    def test_one_line_of_settings_makes_every_line_json(
        self, database_url: str, lines: Lines
    ) -> None:
        Job.objects.create()
        result = subprocess.run(
            [sys.executable, "manage.py", "reap"],
            env={
                **os.environ,
                "DATABASE_URL": database_url,
                "DJANGO_LOG_FORMAT": "json",
                "DJANGO_SETTINGS_MODULE": "project.settings",
            },
            check=True,
            capture_output=True,
            text=True,
        )
        [line] = [json.loads(text) for text in result.stderr.splitlines()]
        assert line["event"] == "pass_finished"
        assert line["requeued"] == 0


def run_a_pass() -> list[str]:
    return reap([Job]).all_errors


def send_jobs() -> list[str]:
    return dispatch().errors


def give_back_of_a_dead_child() -> list[str]:
    children.give_back(1, "killed by SIGKILL", retries=0)
    return []


@pytest.mark.parametrize("act", [run_a_pass, send_jobs, give_back_of_a_dead_child])
def test_what_is_wrong_with_a_table_is_said_and_not_what_is_in_it(
    act: Callable[[], list[str]], lines: Lines, sql: Any
) -> None:
    sql(
        "INSERT INTO jobs (status, lease_expires_at, locked_by, stage, payload)"
        " SELECT status, now() - interval '1 s', %s, 'clip', jsonb_build_object('token', %s::text)"
        " FROM unnest(ARRAY['queued', 'processing']) AS status",
        id_of_child(1),
        SECRET,
    )
    sql("ALTER TABLE jobs ADD CONSTRAINT never CHECK (id IS NULL) NOT VALID")
    try:
        told = act()
    finally:
        sql("ALTER TABLE jobs DROP CONSTRAINT never")
    said = [*(record.getMessage() for record in lines()), *told]
    assert any("never" in text for text in said)
    assert all(SECRET not in text for text in said)
