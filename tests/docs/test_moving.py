"""The guides for moving from other queues, followed with the real packages and their workers: no
job is lost, and none runs twice.
"""

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobreaper.backend.compat import PACKAGE
from tests.docs import markdown
from tests.docs.site import COMMAND_SEC, Site
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)]

# Orders are noted as they are begun and done. One takes until it is told to go on, as does one
# whose worker is killed.
DELIVERY = """
import time
from pathlib import Path

def note(file, order):
    with open(file, "a") as ledger:
        ledger.write(order + "\\n")

def deliver(order):
    note("begun", order)
    if order == "broken":
        raise ValueError("no paper")
    while order in ("slow", "dead") and not Path(order + " may go on").exists():
        time.sleep(0.05)
    note("done", order)
    return {"order": order}
"""

WAITING = ["first", "second", "third", "fourth", "fifth", "sixth"]


@dataclass(frozen=True)
class Guide:
    """What its page does not say: how the old queue was set up, used and run."""

    package: str
    settings: str
    enqueue: str
    worker: str
    # A query that has a row when whatever was put into the old queue has ended.
    ended: str
    # A query for what is in the old queue for later, after going back.
    later: str
    settings_of_going_back: str = ""

    @property
    def page(self) -> str:
        """The text of the page, for the Django that is here."""
        text = markdown.page(f"moving-{self.package}")
        return text.replace("from django.tasks", f"from {PACKAGE}")


OLD_TASKS = 'TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}\n'
HERE = "" if PACKAGE == "django.tasks" else '"django_tasks", '
GUIDES = [
    Guide(
        "django-tasks-db",
        f'INSTALLED_APPS += [{HERE}"django_tasks_db"]\n{OLD_TASKS}',
        "from shop.tasks import send_invoice\n"
        "def at_once(order): send_invoice.enqueue(order)\n"
        "def later(order, at): send_invoice.using(run_after=at).enqueue(order)\n"
        "new = at_once\n",
        "python manage.py db_worker --interval 0.1 --no-startup-delay --no-reload",
        "SELECT 1 FROM django_tasks_database_dbtaskresult"
        " HAVING bool_and(status IN ('SUCCESSFUL', 'FAILED'))",
        "SELECT run_after AS at FROM django_tasks_database_dbtaskresult WHERE status = 'READY'",
        OLD_TASKS,
    ),
    Guide(
        "procrastinate",
        'INSTALLED_APPS += ["procrastinate.contrib.django"]\n',
        "from shop.tasks import send_invoice\n"
        "def at_once(order): send_invoice.defer(order=order)\n"
        "def later(order, at): send_invoice.configure(schedule_at=at).defer(order=order)\n"
        "def new(order):\n"
        "    from jobreaper import enqueue\n"
        "    enqueue('shop.tasks.send_invoice', {'order': order})\n",
        "python manage.py procrastinate worker",
        "SELECT 1 FROM procrastinate_jobs HAVING bool_and(status IN ('succeeded', 'failed'))",
        "SELECT scheduled_at AS at FROM procrastinate_jobs WHERE status = 'todo'",
    ),
    Guide(
        "django-q2",
        'INSTALLED_APPS += ["django_q"]\n'
        'Q_CLUSTER = {"name": "shop", "orm": "default", "workers": 1, "queue_limit": 1,'
        ' "timeout": 1800, "retry": 3600, "ack_failures": True, "poll": 0.1}\n',
        "from django_q.tasks import async_task, schedule\n"
        "def at_once(order): async_task('shop.tasks.send_invoice', order)\n"
        "def later(order, at): schedule('shop.tasks.send_invoice', order, next_run=at)\n"
        "def new(order):\n"
        "    from jobreaper import enqueue\n"
        "    enqueue('shop.tasks.send_invoice', {'args': [order], 'kwargs': {}})\n",
        "python manage.py qcluster",
        "SELECT 1 FROM django_q_ormq HAVING count(*) = 0",
        "SELECT next_run AS at FROM django_q_schedule WHERE repeats <> 0",
    ),
]

HOW = """
from datetime import datetime, UTC
from shop import how

def run(*calls):
    for name, order in calls:
        getattr(how, name)(order, *([datetime(2099, 1, 2, tzinfo=UTC)] if name == "later" else []))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "shop")
    yield site
    site.leave()


def ledger(site: Site, name: str) -> Counter[str]:
    file = site.home / name
    return Counter(file.read_text().split() if file.exists() else ())


def wait_for(site: Site, name: str, *orders: str) -> None:
    until(lambda: set(orders) <= set(ledger(site, name)), COMMAND_SEC)


def call(site: Site, **orders: list[str]) -> None:
    """Call the functions of shop/how.py."""
    calls = [(name, order) for name, several in orders.items() for order in several]
    site.run(f'python manage.py shell -v 0 -c "from shop.call import run; run(*{calls})"')


def kill(worker: subprocess.Popen[bytes]) -> None:
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    worker.wait(COMMAND_SEC)


def statuses(site: Site) -> Counter[str]:
    return Counter(row["status"] for row in site.sql("SELECT status FROM jobreaper_jobs"))


@pytest.mark.parametrize("guide", [pytest.param(guide, id=guide.package) for guide in GUIDES])
def test_no_job_is_lost_on_the_way_and_none_runs_twice(guide: Guide, site: Site) -> None:
    module = guide.package.replace("-", "_").replace("django_q2", "django_q")
    if find_spec(module) is None:
        pytest.skip(f"{guide.package} is not installed")
    switch = markdown.section(guide.page, "The switch")
    tasks = next(code for path, code in markdown.files(switch) if path == "shop/tasks.py")
    site.add("mysite/settings.py", guide.settings)
    for path, code in {
        "delivery": DELIVERY,
        "how": guide.enqueue,
        "call": HOW,
        "tasks": tasks,
    }.items():
        site.add(f"shop/{path}.py", code)
    site.run("python manage.py migrate")
    old = site.start(guide.worker)
    call(site, at_once=["done", "broken"])
    site.await_row(guide.ended)
    call(site, at_once=["dead"])
    wait_for(site, "begun", "dead")
    kill(old)
    old = site.start(guide.worker)
    call(site, at_once=["slow"])
    wait_for(site, "begun", "slow")
    call(site, at_once=WAITING, later=["later"])

    site.follow(guide.page)
    migrate, _, *carry = markdown.commands(switch)
    site.run(migrate)
    site.run(carry[0])
    site.run("python manage.py work --once")
    carried = ledger(site, "done")
    assert carried["sixth"] == 1, "nothing was carried over beside the old worker"
    (site.home / "slow may go on").touch()
    wait_for(site, "done", "slow", *WAITING)
    stop(old)
    assert ledger(site, "begun")["dead"] == 1
    for command in carry[1:]:
        site.run(command)
    (site.home / "dead may go on").touch()
    site.run("python manage.py work --once")
    assert ledger(site, "done") == Counter(["done", "dead", "slow", *WAITING])
    assert ledger(site, "begun") == ledger(site, "done") + Counter(["broken", "dead"])
    again = site.run(carry[-1])
    assert set(re.findall(r"(\d+) moved|(\d+) refused", again)) == {("0", ""), ("", "0")}
    assert statuses(site) == {"queued": 1, "success": 9, "failed": 1}
    [queued] = site.sql("SELECT * FROM jobreaper_jobs WHERE status = 'queued'")
    assert queued["next_earliest_run_at"].year == 2099

    call(site, new=["back"])
    site.add("mysite/settings.py", guide.settings_of_going_back)
    [hand_back] = markdown.commands(markdown.section(guide.page, "Going back"))
    site.run(hand_back)
    site.start(guide.worker)
    wait_for(site, "done", "back")
    assert ledger(site, "done") == Counter(["done", "dead", "slow", "back", *WAITING])
    assert [row["at"].year for row in site.sql(guide.later)] == [2099]
    assert statuses(site) == {"cancelled": 2, "success": 9, "failed": 1}


REPORTS = """
import os
from pathlib import Path
from shop.delivery import deliver

def write(title):
    Path(title + " runs in").write_text(str(os.getpid()))
    deliver(title)
"""


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "reports")
    yield site
    site.leave()


def test_rows_of_a_status_column_run_once_whatever_became_of_their_messages(reports: Site) -> None:
    site, page = reports, markdown.page("moving-celery")
    before, columns, code, work, back = (
        markdown.section(page, heading)
        for heading in (
            "The table before",
            "One: the columns",
            "Three: the new code, and the words",
            "Four: the new workers",
            "Going back",
        )
    )
    site.add("shop/delivery.py", DELIVERY)
    site.add("reports/writing.py", REPORTS)
    site.follow(before)
    site.run("python manage.py makemigrations reports")
    site.run("python manage.py migrate")
    site.add(
        "reports/call.py",
        "from reports.models import Report\n"
        "from reports.tasks import write_report\n"
        "def new(*titles, send=True):\n"
        "    for title in titles:\n"
        "        pk = Report.objects.create(title=title).pk\n"
        "        send and write_report.delay(pk)\n",
    )

    def new(arguments: str) -> None:
        site.run(f'python manage.py shell -v 0 -c "from reports.call import new; new({arguments})"')

    [start] = markdown.commands(work)
    old_start = start.replace(" --beat", " --concurrency 1 --prefetch-multiplier 1")
    old = site.start(old_start)
    new("'done', 'broken', 'dead'")
    wait_for(site, "begun", "dead")
    # Only the child: the worker acknowledges the message, as it did all those that were lost.
    os.kill(int((site.home / "dead runs in").read_text()), signal.SIGKILL)
    new("'slow', 'first', 'second'")
    new("'unsent', send=False")
    wait_for(site, "begun", "slow")
    site.follow(columns)
    [migrate] = markdown.commands(columns)
    site.run(migrate)
    old.terminate()
    (site.home / "slow may go on").touch()
    old.wait(COMMAND_SEC)
    new("'late'")

    site.follow(code)
    for command in markdown.commands(code):
        site.run(command)
    *_, change_words = markdown.commands(code)
    assert re.findall(r"^(\d+)", site.run(change_words), re.MULTILINE) == ["0", "0", "0"]
    (site.home / "dead may go on").touch()
    new_worker = site.start(start)
    rows = "SELECT 1 FROM reports_report HAVING bool_and(status IN ('success', 'failed'))"
    site.await_row(rows)
    stop(new_worker)
    orders = ["done", "dead", "slow", "first", "second", "unsent", "late"]
    assert ledger(site, "done") == Counter(orders)
    assert ledger(site, "begun") == Counter([*orders, "broken", "dead"])

    new("'back'")
    site.follow(back)
    purge, change_back = markdown.commands(back)
    site.run(purge)
    site.run(change_back)
    site.follow(before)
    site.run("python manage.py shell -v 0 -c 'import send_pending'")
    site.start(old_start)
    site.await_row("SELECT 1 FROM reports_report WHERE title = 'back' AND status = 'done'")
    assert ledger(site, "begun")["back"] == 1
