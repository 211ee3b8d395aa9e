"""The `tidegate fleet` command.

The rule of this module: options in, one JSON line out, then wait.
"""

import signal
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from loadtest.engine.presets import ENGINES, UnknownEngine
from loadtest.fleet.fleet import DEFAULT_MODEL, FleetSpec, running_fleet
from loadtest.fleet.pools import parse_pools
from loadtest.fleet.processes import FleetError


def fleet(
    *,
    pools: Annotated[str, typer.Option(help="Workers by role: 2P2D, 1P3D, or 4A for aggregated ones.")] = "2P2D",
    engine: Annotated[str, typer.Option(help=f"Engine preset: {', '.join(ENGINES)}.")] = "h100-llama70b-tp4",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")] = 8080,
    speed: Annotated[float, typer.Option(min=0.01, help="Engine seconds per second.")] = 1.0,
    model: Annotated[str, typer.Option(help="The model name that clients ask for.")] = DEFAULT_MODEL,
    config: Annotated[Path | None, typer.Option(help="Gateway settings beside server and workers.")] = None,
    policy: Annotated[str | None, typer.Option(help="Path policy (routing.policy).")] = None,
    decision_log: Annotated[Path | None, typer.Option(help="JSONL file for decision records.")] = None,
) -> None:
    """Run emulated workers and the gateway in front of them until stopped; needs no GPU.

    The first line printed is JSON with all URLs.
    """
    try:
        settings = _settings(config)
        if policy is not None:
            settings["routing"] = {**(settings.get("routing") or {}), "policy": policy}
        if decision_log is not None:
            settings["telemetry"] = {**(settings.get("telemetry") or {}), "decision_log": str(decision_log.resolve())}
        spec = FleetSpec(
            pools=parse_pools(pools), engine=engine, port=port, speed=speed, model=model, settings=settings
        )
        with running_fleet(spec) as started:
            typer.echo(started.as_json())
            _wait_for_signal()
    except (FleetError, UnknownEngine, ValueError, OSError, yaml.YAMLError) as error:
        raise typer.BadParameter(str(error)) from error


def _settings(config: Path | None) -> dict[str, Any]:
    tree = yaml.safe_load(config.read_text()) if config else {}
    if not isinstance(tree, dict | None):
        raise FleetError(f"{config} must hold a mapping of sections")
    return tree or {}


def _wait_for_signal() -> None:
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    signal.sigwait(signals)
