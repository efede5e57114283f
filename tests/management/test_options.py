"""What the commands take for an option's value, and what is bad usage."""

from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command

import jobreaper


@pytest.mark.parametrize(
    "options",
    [
        ["work", "--type", "caf\udce9"],
        ["work", "--stage", "caf\udce9"],
        ["pause", "caf\udce9"],
        ["resume", "caf\udce9"],
    ],
)
def test_a_name_that_was_no_utf_8_on_the_command_line_is_refused(options: list[str]) -> None:
    with pytest.raises(CommandError, match="neither NUL nor a lone surrogate"):
        call_command(*options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["reap", "--batch-size", "99999999999999999999"], "it must be at most 2147483647"),
        (["prune", "--batch-size", "99999999999999999999"], "it must be at most 2147483647"),
        (["work", "--batch", "99999999999999999999"], "it must be at most 2147483647"),
        (["work", "--poll", "1e10"], "it must not be longer than a year"),
        (["work", "--poll", "inf"], "it must not be longer than a year"),
        (["work", "--poll", "nan"], "it must be more than 0"),
        (["work", "--poll", "0"], "it must be more than 0"),
    ],
)
def test_a_number_beyond_all_bounds_is_refused(options: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        call_command(*options)


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["reap", "prune"])
def test_the_largest_batch_is_no_error_of_the_database(command: str) -> None:
    call_command(command, "--batch-size", "2147483647")


@pytest.mark.parametrize("act", [jobreaper.reap, jobreaper.prune])
def test_python_refuses_such_a_batch_too(act: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1 and at most 2147483647"):
        act(batch_size=2**31)
