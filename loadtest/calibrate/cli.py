"""The `tidegate calibrate` command.

The rule of this module: options in, tables out; nothing is measured or fitted here.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.wire.decision_record import DecisionLogError, decode_records
from loadtest.calibrate.limits import CalibrationError
from loadtest.calibrate.live import CalibrationOptions, CalibrationResult
from loadtest.calibrate.live import calibrate as measure
from loadtest.calibrate.logged import log_observations
from loadtest.calibrate.outcome import doubts
from loadtest.calibrate.plan import Plan
from loadtest.calibrate.refine import refine
from loadtest.calibrate.tables import price_table, refinement_table, residual_table
from loadtest.engine.engine_file import SUFFIX, EngineFile, read_engine_file, write_engine_file
from loadtest.engine.presets import UnknownEngine, load_engine
from policy_store.costs.file import read_shipped

OnPlan = Callable[[Plan], object]
OnSent = Callable[[int], object]


def calibrate(
    *,
    out: Annotated[Path, typer.Option(help="The engine file to write (.json).")],
    url: Annotated[str | None, typer.Option(help="The worker to probe: its URL, with or without /v1.")] = None,
    prefill_url: Annotated[
        str | None, typer.Option(help="A prefill worker whose KV the other one fetches; unset measures no transfer.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Budget: no more requests than this are sent.")] = 1000,
    model: Annotated[str | None, typer.Option(help="Model name; unset takes the first of /v1/models.")] = None,
    speed: Annotated[
        float, typer.Option(min=0.001, help="An emulated worker's speed factor: all times are multiplied by it.")
    ] = 1.0,
    max_batched_tokens: Annotated[
        int, typer.Option(min=1, help="The worker's token budget of one step (max_num_batched_tokens).")
    ] = 8192,
    max_running: Annotated[int, typer.Option(min=1, help="The worker's largest batch (max_num_seqs).")] = 256,
    plans_ahead: Annotated[bool, typer.Option(help="It schedules asynchronously, as vLLM does by default.")] = True,
    kv_bytes_per_token: Annotated[
        int | None, typer.Option(min=1, help="KV bytes of one token; unset takes what the worker's metrics tell.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Real seconds that one request may take.")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="Of the prompts; unset draws one that no cache has seen.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="LOADTEST_API_KEY", show_envvar=True, help="Bearer key.")
    ] = None,
    from_log: Annotated[
        Path | None,
        typer.Option(help="Instead of probing, scale --base to this decision log."),
    ] = None,
    base: Annotated[str | None, typer.Option(help="An engine file or preset, for --from-log.")] = None,
) -> None:
    """Measure a live worker and write its limits and prices to a file that other commands take as an engine.

    The worker must be idle, and must stay so but for the probes. With --from-log nothing is sent: the prices of
    --base are scaled to what a gateway has logged, where that brings them closer to requests that were held out.
    """
    console = Console()
    if (url is None) == (from_log is None) or (from_log is None) != (base is None):
        raise typer.BadParameter("give either --url, or --from-log together with --base")
    if from_log is not None and base is not None:
        _refine(console, from_log, base, out, speed)
        return
    assert url is not None
    options = CalibrationOptions(
        url=url,
        name=out.stem,
        prefill_url=prefill_url,
        model=model,
        budget_requests=requests,
        speed=speed,
        seed=secrets.randbits(32) if seed is None else seed,
        max_batched_tokens=max_batched_tokens,
        max_running=max_running,
        plans_ahead=plans_ahead,
        kv_bytes_per_token=kv_bytes_per_token,
        timeout_s=timeout,
        api_key=api_key,
    )
    try:
        with _progress_bar(console) as (on_plan, on_sent):
            result = uvloop.run(measure(options, on_plan=on_plan, on_sent=on_sent))
        write_engine_file(result.file, out)
    except (CalibrationError, ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    _show(console, result, out)


def _refine(console: Console, log: Path, base: str, out: Path, speed: float) -> None:
    try:
        file = _engine_file(base)
        with log.open("rb") as lines:
            budget_tokens = file.limits.max_batched_tokens
            seen = log_observations(decode_records(lines), budget_tokens=budget_tokens, speed=speed)
        refined = refine(file, seen, log_name=log.name)
        if refined.changed:
            write_engine_file(refined.file, out)
    except (DecisionLogError, UnknownEngine, ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(refinement_table(refined))
    if not refined.changed:
        console.print(f"{base} is kept: no factor brought it closer to the held-out requests; nothing is written")
        raise typer.Exit(1)
    console.print(f"written to {out}")


def _engine_file(base: str) -> EngineFile:
    if base.endswith(SUFFIX):
        return read_engine_file(Path(base))
    spec, _ = load_engine(base)
    return EngineFile(limits=spec, max_model_len=None, costs=read_shipped(base))


def _show(console: Console, result: CalibrationResult, out: Path) -> None:
    console.print(price_table(result.file))
    console.print(residual_table(result.file.costs.provenance.residuals))
    for doubt in doubts(result.file.costs.provenance.residuals):
        console.print(f"[yellow]{doubt}[/]", highlight=False)
    for failure in result.measured.failures:
        console.print(f"[yellow]left out: {escape(failure)}[/]", highlight=False)
    measured = result.measured
    console.print(f"{measured.requests} requests, {measured.repeats} measurements; written to {out}")


@contextmanager
def _progress_bar(console: Console) -> Iterator[tuple[OnPlan, OnSent]]:
    columns = (TextColumn("probing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("probing", total=None)

        def on_plan(plan: Plan) -> None:
            bar.update(task, total=plan.requests)

        def on_sent(requests: int) -> None:
            bar.advance(task, requests)

        yield on_plan, on_sent
