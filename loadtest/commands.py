"""The commands that loadtest adds to `tidegate`.

The rule of this module: a name and a function each; what they do is theirs.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import typer

from loadtest.calibrate.cli import calibrate
from loadtest.client.cli import loadtest
from loadtest.compare.command import compare_command
from loadtest.demo.cli import demo
from loadtest.experiment.command import experiment_command
from loadtest.fleet.cli import fleet
from loadtest.learning.command import learn
from loadtest.replay import replay_command
from loadtest.simulator.cli import simulate_command

COMMANDS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "calibrate": calibrate,
        "compare": compare_command,
        "demo": demo,
        "experiment": experiment_command,
        "fleet": fleet,
        "loadtest": loadtest,
        "replay": replay_command,
        "simulate": simulate_command,
    }
)

GROUPS: Mapping[str, typer.Typer] = MappingProxyType({"learn": learn})
"""Those with commands of their own."""
