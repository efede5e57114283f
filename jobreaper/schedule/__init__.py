"""Jobs that are made again and again, at times that a cron expression names.

``declared`` which schedules the handlers and the settings declare.
``ticks``    makes the jobs that are due, one for each time however many processes look.
``by_hand``  pausing, resuming, and a job at once.
"""

from jobreaper.schedule.by_hand import pause_schedule, resume_schedule, run_schedule
from jobreaper.schedule.ticks import Scheduler

__all__ = ["Scheduler", "pause_schedule", "resume_schedule", "run_schedule"]
