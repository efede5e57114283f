"""The demo's course of events."""

import http.client
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psutil
from django.db import transaction
from django.db.models.functions import Now

from jobreaper.models import ReaperPass
from jobreaper.states import TERMINAL, EventType, Trigger
from project.demo.chronicle import Chronicle, pid_of
from project.demo.house import Child, House, Trouble
from project.demo.outcome import TABLES, TAKEN_BACK, Expected, missing_events
from project.demo.screen import RED, YELLOW, Screen
from project.media.models import AsrJob, Job, MediaJob
from project.media.work import make_video

T = TypeVar("T")

LOOK_EVERY_SEC = 0.1
PATIENCE_SEC = 60

# The jobs that will lose their worker read at native speed, so that they are still running when it
# is killed.
VIDEO_SEC = 6
MIDDLE = timedelta(seconds=1.5)


class Story:
    """Kills and freezes workers, and watches the tables from outside."""

    def __init__(self, house: House, screen: Screen) -> None:
        self.house = house
        self.screen = screen
        self.chronicle = Chronicle(screen)
        self.workers: dict[int, Child] = {}
        self.login = ""
        self.expected: list[Expected] = []

    def tell(self) -> None:
        """Run the demo until every job has ended."""
        host, port = self.house.start_web_server()
        self.house.start_celery()
        self._start_worker()
        self._start_worker()
        self.screen.say("Started: two workers, Celery beat, the Celery worker of the reaper.")
        self._until(lambda: _answers(host, port), "the web server to answer")
        self.login = f"The admin: http://{host}:{port}/admin/ user admin, password admin"
        self.screen.say(f"{self.login}.")
        clip, recording = self._queue_jobs()
        self._kill_worker_of(clip)
        frozen = self._freeze_worker_of(recording)
        self._until(lambda: _claimed_again(recording), f"{recording} to be claimed again")
        self._wake(frozen)
        self._until(
            lambda: not missing_events(self.expected), "the woken worker's write to be rejected"
        )
        self._until(lambda: not any(map(_has_unfinished, TABLES)), "every job to reach its end")
        passes = ReaperPass.objects.filter(trigger=Trigger.BEAT).count()
        self.screen.say(
            f"Every job has reached its end. Celery beat ran the reaper {passes} times."
        )

    def serve(self) -> None:
        """Continue until Ctrl-C, and replace workers that end."""
        while True:
            self._look(replace_workers=True)
            time.sleep(LOOK_EVERY_SEC)

    def _start_worker(self) -> str:
        worker = self.house.start_worker()
        self.workers[worker.pid] = worker
        self.chronicle.introduce(worker.name, worker.pid)
        return worker.name

    def _queue_jobs(self) -> tuple[Job, AsrJob]:
        source = str(self.house.files / "video.mp4")
        make_video(Path(source), VIDEO_SEC)
        whole = {"source": source, "native_speed": True}
        with transaction.atomic():
            clip = Job.objects.create(stage="clip", payload=whole)
            recording = AsrJob.objects.create(stage="asr", payload=whole)
            for start in range(3):
                part = {"source": source, "start": start, "seconds": 2}
                Job.objects.create(stage="clip", payload=part)
                Job.objects.create(stage="burnin", payload={**part, "text": f"It's part {start}"})
                AsrJob.objects.create(stage="asr", payload=part)
        counts = (f"{model.objects.count()} in {model._meta.db_table}" for model in TABLES)
        self.screen.say(
            f"Queued for ffmpeg: clips, text to burn in, sound to extract; {', '.join(counts)}."
        )
        return clip, recording

    def _kill_worker_of(self, job: MediaJob) -> None:
        worker, worker_id = self._in_the_middle_of(job)
        self.house.kill(worker)
        self.chronicle.note_strike(worker.pid, "killed")
        self.expected.append(Expected(TAKEN_BACK, job, worker_id))
        self.screen.say(f"KILLED {worker.name} (SIGKILL) in the middle of {job}.", RED)
        self.screen.say(f"{self._start_worker()} is started in its place.")

    def _freeze_worker_of(self, job: MediaJob) -> Child:
        worker, worker_id = self._in_the_middle_of(job)
        worker.process.send_signal(signal.SIGSTOP)
        self.chronicle.note_strike(worker.pid, "frozen")
        for kind in (EventType.REAPER_REQUEUED, EventType.JOB_STALE_WRITE_REJECTED):
            self.expected.append(Expected((kind,), job, worker_id))
        self.screen.say(f"FROZEN {worker.name} (SIGSTOP) in the middle of {job}.", YELLOW)
        return worker

    def _in_the_middle_of(self, job: MediaJob) -> tuple[Child, str]:
        """Wait until a worker is well into `job`; return it and its worker id."""
        well_into = type(job).objects.running().filter(pk=job.pk, claimed_at__lte=Now() - MIDDLE)
        ids = well_into.values_list("locked_by", flat=True)
        worker_id = self._until(ids.first, f"a worker to be in the middle of {job}")
        return self.workers[pid_of(worker_id)], worker_id

    def _wake(self, worker: Child) -> None:
        # A worker whose ffmpeg is still running notices its loss in time, and does not write.
        self._until(lambda: _children_have_ended(worker.pid), "the frozen worker's ffmpeg to end")
        worker.process.send_signal(signal.SIGCONT)
        self.screen.say(
            f"WOKEN {worker.name} (SIGCONT); its ffmpeg is done, it wants to finish.", YELLOW
        )

    def _until(self, condition: Callable[[], T | None], what: str) -> T:
        """Tell what happens until `condition` is true, and return its value."""
        deadline = time.monotonic() + PATIENCE_SEC
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise Trouble(f"Waited {PATIENCE_SEC} s for {what}, in vain.")
            self._look()
            time.sleep(LOOK_EVERY_SEC)
        self._look()
        return result

    def _look(self, *, replace_workers: bool = False) -> None:
        for child in self.house.take_ended():
            if child.pid not in self.workers or not replace_workers:
                raise Trouble(f"The {child.name} ended unasked:\n{child.last_words()}")
            self.chronicle.note_strike(child.pid, "ended")
            self.screen.say(f"{child.name} has ended; {self._start_worker()} replaces it.", RED)
        self.chronicle.tell_news()


def _claimed_again(job: MediaJob) -> bool:
    return bool(type(job).objects.filter(pk=job.pk, attempt_count__gt=1).exists())


def _has_unfinished(model: type[MediaJob]) -> bool:
    return bool(model.objects.exclude(status__in=TERMINAL).exists())


def _children_have_ended(pid: int) -> bool:
    # Their parent is frozen and cannot wait for them.
    children = psutil.Process(pid).children()
    return all(child.status() == psutil.STATUS_ZOMBIE for child in children)


def _answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/admin/login/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
