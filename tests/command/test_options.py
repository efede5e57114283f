"""What the commands take for an option's value, and what is bad usage."""

import pytest
from django.core.management import CommandError, call_command


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
