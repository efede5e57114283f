"""Prometheus' own tool, of Debian's package `prometheus`, where this machine has it."""

import shutil
import subprocess

import pytest

PROGRAM = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROGRAM is None, reason="promtool is not on this machine")


def promtool(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run it with `text` as its input. It exits with 0 where it objects to nothing."""
    assert PROGRAM is not None
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
