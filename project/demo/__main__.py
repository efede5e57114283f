"""Runs the demo: `python -m project.demo [--exit]`."""

import argparse
import os
import signal
import sys
from contextlib import suppress

from project.demo.screen import BOLD, GREEN, RED, Screen

WHAT = (
    "Two workers run real ffmpeg jobs. One is killed, one is frozen until its job was given to\n"
    "another and then woken. The killed one is missed at once; the reaper, which Celery beat\n"
    "runs, gives back the frozen one's job when its lease has run out. Other workers finish both\n"
    "jobs, and what the woken one writes is rejected. No job is lost."
)


def main() -> int:
    """Run the demo; return 0 if everything happened as described above."""
    parser = argparse.ArgumentParser(prog="python -m project.demo", description=WHAT)
    parser.add_argument("--exit", action="store_true", help="end at once, instead of serving")
    ends_at_once = parser.parse_args().exit
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        return _run(ends_at_once)
    except KeyboardInterrupt:
        print("\nInterrupted; everything is stopped.")
        return 128 + signal.SIGINT


def _run(ends_at_once: bool) -> int:
    screen = Screen()
    screen.show(f"{WHAT}\n", BOLD)
    given = [name for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)]
    screen.say(f"Servers: {' and '.join(given)} as given." if given else "Starting servers.")

    # Everything below needs the settings, which start the embedded servers.
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.demo.settings"
    import django

    django.setup()
    from project.demo.house import DATABASE, House, Trouble
    from project.demo.outcome import sum_up
    from project.demo.story import Story

    try:
        with House() as house:
            house.make_database()
            screen.say(f"The database {DATABASE} is made.")
            story = Story(house, screen)
            story.tell()
            problems = sum_up(screen, story.expected)
            house.keep = bool(problems)
            for problem in problems:
                screen.show(f"Wrong: {problem}", RED)
            if not problems:
                screen.show("No job was lost, no stale write got through.", GREEN)
            if ends_at_once:
                screen.show(f"{story.login}; without --exit it would stay.")
            else:
                screen.show(f"{story.login}. Ctrl-C ends the demo.", BOLD)
                screen.show(f"What ffmpeg wrote, and all logs, are in {house.files} until then.")
                with suppress(KeyboardInterrupt):
                    story.serve()
                screen.show("\nStopping.")
    except Trouble as error:
        screen.show(str(error), RED)
        return 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
