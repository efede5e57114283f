"""The whole demo, from a bare machine to the last process gone."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from project.demo import MEDIA_QUEUE
from tests.project.processes import left_over
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL")

Demo = subprocess.Popen[str]
Start = Callable[..., Demo]


@pytest.fixture
def home(open_path: Path) -> Path:
    """Where everything temporary of a demo goes, so that it can be seen to be gone."""
    path = open_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the demo as on a machine without servers."""
    environment = {key: value for key, value in os.environ.items() if key not in SERVERS}
    environment |= {"TMPDIR": str(home), "JOBREAPER_EMBEDDED": "temporary"}
    demos: list[Demo] = []

    def run(*arguments: str, **more: str) -> Demo:
        demo = subprocess.Popen(
            [sys.executable, "-m", "project.demo", *arguments],
            cwd=ROOT,
            env=environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        demos.append(demo)
        return demo

    yield run
    for demo in demos:
        with demo:
            demo.kill()
    for process in left_over(home):
        process.kill()


def read_to(demo: Demo, pattern: str) -> re.Match[str]:
    """Read the demo's lines up to one that matches."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"no {pattern!r} in\n{''.join(lines)}")


def test_the_demo_loses_no_job_and_leaves_nothing_behind(start: Start, home: Path) -> None:
    demo = start("--exit")
    output = demo.communicate()[0]
    assert demo.returncode == 0, output
    # Who is struck depends on who came first.
    story = re.search(
        r"KILLED (worker \d) \(SIGKILL\) in the middle of clip 1.*"
        r"FROZEN (worker \d) \(SIGSTOP\) in the middle of asr 1.*"
        r"WOKEN \2.*"
        r"REJECTED: \2 tried to finish asr 1 under epoch 1; the job is at epoch 3.*"
        r"worker \d finished asr 1",
        output,
        re.DOTALL,
    )
    assert story, output
    killed, frozen = story.groups()
    assert re.search(rf"(NOTICED|THE REAPER), [\d.]+ s after {killed} was killed", output), output
    assert re.search(rf"THE REAPER, [\d.]+ s after {frozen} was frozen", output), output
    assert re.search(r"total +11 +11 +2 +0 +0 +1\n", output), output
    assert "\x1b" not in output
    assert left_over(home) == []
    assert list(home.iterdir()) == []


def test_the_demo_serves_the_admin_and_replaces_workers_until_it_is_interrupted(
    start: Start, home: Path
) -> None:
    demo = start()
    address = read_to(demo, r"(http://\S+) user admin, password admin\. Ctrl-C").group(1)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as page:
        assert "Django" in page.read().decode()
    children = psutil.Process(demo.pid).children()
    next(child for child in children if MEDIA_QUEUE in child.cmdline()).kill()
    read_to(demo, r"has ended; worker 4 replaces it")
    demo.send_signal(signal.SIGINT)
    output = demo.communicate()[0]
    assert demo.returncode == 0, output
    assert left_over(home) == []
    assert list(home.iterdir()) == []


def test_an_interrupt_in_the_middle_ends_everything(start: Start, home: Path) -> None:
    demo = start("--exit")
    read_to(demo, "FROZEN")
    demo.terminate()
    output = demo.communicate()[0]
    assert demo.returncode == 130, output
    assert left_over(home) == []
    assert list(home.iterdir()) == []


def test_nothing_outlives_a_demo_that_is_killed(start: Start, home: Path) -> None:
    demo = start("--exit")
    read_to(demo, "FROZEN")
    assert left_over(home)
    demo.kill()
    until(lambda: not left_over(home), every_sec=0.2)


def test_a_demo_that_goes_wrong_says_so_and_names_its_logs(start: Start, home: Path) -> None:
    demo = start("--exit", IMAGEIO_FFMPEG_EXE="/bin/false")
    output = demo.communicate()[0]
    assert demo.returncode == 1, output
    match = re.search(r"Left for a look: (\S+)", output)
    assert match, output
    assert (Path(match.group(1)) / "Celery-beat.log").exists()
    assert left_over(home) == []
