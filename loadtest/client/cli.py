"""The `tidegate loadtest` command.

The rule of this module: it turns options into a measurement and prints it; nothing is measured or counted here.
"""

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from gateway.core.types import Endpoint, SloTarget
from loadtest.client.http import HttpError
from loadtest.client.measure import Measurement, measure, write_measurement
from loadtest.client.options import LoadOptions
from loadtest.client.runner import LoadError, Progress, first_model
from loadtest.report.conversations import summarise_conversations
from loadtest.report.slo import parse_slo
from loadtest.report.tables import conversation_table, headlines, latency_table, path_table, reconcile_table
from loadtest.traces.loaders import load_workload
from loadtest.traces.spec import TRACE_HELP
from loadtest.traces.types import TraceError
from loadtest.traces.workload import Workload

OnProgress = Callable[[Progress], object]


def loadtest(
    *,
    url: Annotated[str, typer.Option(help="Base URL of an OpenAI API, with /v1.")] = "http://127.0.0.1:8080/v1",
    trace: Annotated[str, typer.Option(help=TRACE_HELP)] = "synthetic:mooncake",
    requests: Annotated[int, typer.Option(min=1, help="How many requests of the trace to send.")] = 600,
    rate_scale: Annotated[float, typer.Option(min=0.001, help="2 doubles the trace's arrival rate.")] = 1.0,
    speed: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="An emulated fleet's speed factor X: arrivals come X times faster, and all times that are "
            "shown and written are multiplied by X, so that they read in the engine's time.",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompt texts.")] = 0,
    endpoint: Annotated[Endpoint, typer.Option(help="chat or completions.")] = Endpoint.CHAT,
    model: Annotated[str | None, typer.Option(help="Model name; unset takes the first of /v1/models.")] = None,
    slo: Annotated[str, typer.Option(help="Latency objective, in the time that is shown.")] = "ttft=2s,tpot=40ms",
    out: Annotated[Path | None, typer.Option(help="Directory for records.jsonl and summary.json.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Real seconds that one request may take.")] = 600.0,
    max_duration: Annotated[
        float | None, typer.Option(min=0.001, help="Real seconds after which the run is stopped.")
    ] = None,
    warm_up: Annotated[int, typer.Option(min=0, help="Small requests to send first, not counted.")] = 0,
    session_header: Annotated[
        str | None, typer.Option(help="Header for the session of traces that have them, such as x-session-id.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="LOADTEST_API_KEY", show_envvar=True, help="Bearer key.")
    ] = None,
    metrics_url: Annotated[
        str | None, typer.Option(help="A Tidegate's metrics; unset tries /metrics on the URL's host and port.")
    ] = None,
) -> None:
    """Replay a request trace against an OpenAI API at its own pace and report latency and SLO attainment.

    Every request is sent at its scheduled time, and latencies count from that time: whoever is slow gets no less to
    do. The turns of a session follow each other: the next one is due when the answer and its pause have ended. Ctrl-C
    stops the run and still reports. Exit status 1 if any request did not complete.
    """
    console = Console()
    try:
        target = parse_slo(slo)
        work = load_workload(trace, limit=requests, seed=seed, rate_scale=rate_scale)
        options = LoadOptions(
            url=url,
            model=model or uvloop.run(first_model(url, api_key=api_key)),
            run_id=f"lt-{secrets.token_hex(4)}",
            endpoint=endpoint,
            seed=seed,
            speed=speed,
            timeout_s=timeout,
            max_duration_s=max_duration,
            warm_up=warm_up,
            api_key=api_key,
            session_header=session_header,
        )
    except (TraceError, LoadError, HttpError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    asked = len(work.flattened())
    with _progress_bar(console, asked) as on_progress:
        measurement = uvloop.run(_until_interrupted(options, work, target, metrics_url, on_progress))
    if out is not None:
        write_measurement(out, measurement)
    console.print(report(measurement, target, speed=speed))
    if measurement.summary.completed < asked:
        raise typer.Exit(1)


def report(measurement: Measurement, slo: SloTarget, *, speed: float) -> Group:
    """What the command prints when a run is over."""
    summary = measurement.summary
    parts: list[RenderableType] = [*headlines(summary, slo), latency_table(summary), path_table(summary)]
    if speed != 1.0:
        parts.insert(1, f"All times are the engine's: {speed:g} times the clock's.")
    if measurement.conversations:
        parts += ["Conversations:", conversation_table(summarise_conversations(measurement.conversations))]
    if measurement.reconciliation:
        parts += ["What the gateway counted:", reconcile_table(measurement.reconciliation)]
    return Group(*parts)


@contextmanager
def _progress_bar(console: Console, total: int) -> Iterator[OnProgress]:
    columns = (
        TextColumn("sent {task.fields[sent]}, failed {task.fields[failed]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with ProgressBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("load", total=total, sent=0, failed=0)

        def on_progress(progress: Progress) -> None:
            bar.update(task, completed=progress.done, sent=progress.sent, failed=progress.failed)

        yield on_progress


async def _until_interrupted(
    options: LoadOptions,
    work: Workload,
    slo: SloTarget,
    metrics_url: str | None,
    on_progress: OnProgress,
) -> Measurement:
    """Measures; the first Ctrl-C or SIGTERM stops the load and the measurement still comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    return await measure(options, work, slo, metrics_url=metrics_url, on_progress=on_progress, stop=stop)
