"""``manage.py redisq``: the producer and the workers of the Redis queue."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import IO, Any, Final, cast

from django.core.management.base import CommandError

from jobreaper import conf
from jobreaper.exceptions import RedisUnreachable
from jobreaper.identity import end_process
from jobreaper.management.options import BAD_USAGE, ERROR, OwnCommand, seconds

ROLES: Final = ("producer", "worker", "all")

# What the extra brings; another module that is missing is a mistake elsewhere.
_EXTRA: Final = (
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "redis",
    "watchdog",
    "yaml",
)


class Command(OwnCommand):
    """Parses the arguments, reads the configuration, and runs the roles until told to stop."""

    help = (
        "Run the Redis queue until SIGTERM or Ctrl-C: make jobs of files, or run jobs, or both. "
        "Exits with 2 if the configuration is wrong, and with 1 if Redis cannot be reached."
    )
    # A database is not needed.
    requires_system_checks = ()
    # Handlers that do not end, and that the process must not wait for.
    _left_behind = 0

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command as a process, and end it even if a handler does not."""
        try:
            super().run_from_argv(argv)
        except SystemExit as ended:
            if self._left_behind:
                end_process(ended)
            raise
        if self._left_behind:
            end_process(None)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--role",
            choices=ROLES,
            default="all",
            help="producer: files become jobs; worker: run jobs, and take back those of dead "
            "workers; all: both (the default)",
        )
        parser.add_argument(
            "--config",
            metavar="PATH",
            help="the YAML file with the configuration (default: REDIS_QUEUE in JOBREAPER)",
        )
        parser.add_argument(
            "--check-config",
            action="store_true",
            help="print the configuration in force, without passwords, and exit",
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="with --role=producer: enqueue the files that are there, then exit",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=seconds,
            metavar="SEC",
            help="how long running jobs may take to end after SIGTERM, before they go back to "
            "their queue (default: 20)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the roles."""
        if options["once"] and options["role"] != "producer":
            raise CommandError("--once works with --role=producer only", returncode=BAD_USAGE)
        try:
            from jobreaper.redisq import loading, serving
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            said = f"{error.name} is not installed: pip install 'jobreaper[redisq]'"
            raise CommandError(said, returncode=BAD_USAGE) from error
        path = options["config"] or conf.settings().redis_queue
        if path is not None and not Path(path).exists():
            self.stderr.write(f"{path} does not exist: the defaults are in force")
        config = loading.load(path)
        if options["check_config"]:
            self.stdout.write(loading.as_yaml(config), ending="")
            return
        service = serving.Service(
            config,
            produces=options["role"] in ("producer", "all"),
            works=options["role"] in ("worker", "all"),
            once=options["once"],
            drain_sec=options["shutdown_timeout"],
        )
        try:
            self._left_behind = service.run(cast(IO[str], self.stderr))
        except RedisUnreachable as error:
            raise CommandError(str(error), returncode=ERROR) from error
        if service.failed:
            raise CommandError(service.failed, returncode=ERROR)
