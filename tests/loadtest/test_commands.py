import inspect
from collections.abc import Callable
from typing import get_args

import pytest
from typer.models import OptionInfo

from loadtest.commands import COMMANDS
from loadtest.learning.command import paths
from loadtest.traces.spec import TRACE_HELP

OF_TRACES: tuple[Callable[..., None], ...] = (
    *(command for command in COMMANDS.values() if "trace" in inspect.signature(command).parameters),
    paths,
)


def test_these_commands_take_traces() -> None:
    assert {command.__name__ for command in OF_TRACES} >= {"demo", "loadtest", "simulate_command", "paths"}


@pytest.mark.parametrize("command", OF_TRACES)
def test_a_command_that_takes_a_trace_says_which_there_are(command: Callable[..., None]) -> None:
    (option,) = get_args(inspect.signature(command).parameters["trace"].annotation)[1:]
    assert isinstance(option, OptionInfo)
    assert TRACE_HELP in (option.help or "")
