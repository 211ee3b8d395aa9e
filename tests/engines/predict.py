"""`python -m tests.engines.predict`: how well a calibrated simulation foretells a real vLLM pair behind the gateway.

The pair is calibrated, then serves a mix of short prompts (local path) and long ones (remote path) through a gateway;
the same requests then run through the simulator on the calibrated engine. Printed is, by path, the P50 of TTFT and
TPOT as measured and as predicted.

The rule of this module: nothing is fitted to the run that is predicted. A model with random weights makes tokens of
which many show no text until others follow, and a client hears no first token before there is text; so the model is
made to say a token that is a word. Without engines it says what is missing and
exits with 0; with them it exits with 1 where a figure is further off than `--within`.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import httpx
from rich.console import Console
from rich.table import Column, Table

from gateway.core.types import Endpoint, SloTarget
from loadtest.calibrate.live import CalibrationOptions, calibrate
from loadtest.calibrate.tables import price_table, residual_table
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.client.runner import run_load, warm_up
from loadtest.engine.engine_file import SUFFIX, EngineFile, write_engine_file
from loadtest.fleet.pools import parse_pools
from loadtest.report.summary import PathSummary, summarise
from loadtest.simulator.scenario import Scenario, run_workload
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload
from tests.engines.engine_pair import Engines, EnginesAbsentError, Pair, running_pair
from tests.engines.pair_gateway import running_gateway

MODELS = {"tiny": "tiny-llama", "smol": "SmolLM2-135M-Instruct"}
THRESHOLD_TOKENS = 300
"""Longer prompts take the remote path; lengths keep clear of it, for the gateway only estimates them."""
ROUTING = {"policy": "llmd", "llmd": {"non_cached_tokens": THRESHOLD_TOKENS}}
SHORT_TOKENS, LONG_TOKENS = (60, 180), (450, 1000)
OUTPUT_TOKENS = (16, 64)
MAX_BATCHED_TOKENS = 2048
"""vLLM's default for a server on a CPU."""
MAX_RUNNING = 16
"""What the start script asks for; and vLLM does not schedule asynchronously on a CPU."""
ALONE_REQUESTS = 12
"""Sent one after the other, to see how long one takes."""
WARM_UP_REQUESTS = 20
"""In these the gateway learns how many bytes a token of this model has."""
WORD = "w17"
SURELY = 100
"""The largest bias that the API allows."""
SLO = SloTarget(name="none", ttft_s=None, tpot_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One latency's P50, in seconds."""

    path: str
    name: str
    requests: int
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def main() -> int:
    """Calibrate, run, simulate, compare; the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    try:
        engines = Engines.find(MODELS[options.model])
    except EnginesAbsentError as error:
        print(f"skipped: no engines here: {error}")
        return 0
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-predict-")))
        work.mkdir(parents=True, exist_ok=True)
        pair = stack.enter_context(running_pair(engines, keep=options.keep))
        for worker, core in zip(pair.workers, sorted(os.sched_getaffinity(0)), strict=False):
            worker.keep_to_core(core)
        engine = _calibrate(pair, options.budget, work)
        console.print(price_table(engine), residual_table(engine.costs.provenance.residuals))
        url = stack.enter_context(running_gateway(pair, ROUTING, work))
        measured, sent = asyncio.run(_measure(pair, url, options))
    predicted = _predict(engine, sent, work)
    figures = list(_figures(measured, predicted))
    console.print(_table(figures))
    return 0 if figures and all(abs(figure.error) <= options.within for figure in figures) else 1


def _calibrate(pair: Pair, budget: int, work: Path) -> EngineFile:
    options = CalibrationOptions(
        url=pair.decode.url,
        prefill_url=pair.prefill.url,
        name=pair.model,
        budget_requests=budget,
        seed=secrets.randbits(32),
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_running=MAX_RUNNING,
        plans_ahead=False,
    )
    result = asyncio.run(calibrate(options))
    write_engine_file(result.file, _engine_path(work))
    return result.file


def _engine_path(work: Path) -> Path:
    return work / f"engine{SUFFIX}"


async def _measure(pair: Pair, url: str, options: argparse.Namespace) -> tuple[list[Record], list[TraceRequest]]:
    """The run's records, and its requests with their lengths in the model's own tokens."""
    load = LoadOptions(
        url=f"{url}/v1",
        model=pair.model,
        run_id=f"predict-{secrets.token_hex(4)}",
        endpoint=Endpoint.COMPLETIONS,
        seed=secrets.randbits(32),
        warm_up=WARM_UP_REQUESTS,
        # Greedy, as the calibration's probes are: sampling takes time too.
        body_members={"temperature": 0, "logit_bias": {str(_word_token(pair)): SURELY}},
    )
    await warm_up(load)
    (probe,) = await run_load(replace(load, seed=load.seed + 1), [_request(0, 0.0, 100, 2)])
    assert probe.input_tokens, f"the gateway does not answer: {probe.error}"
    words_per_token = 100 / probe.input_tokens
    busy_s = await _alone_s(replace(load, seed=load.seed + 2), words_per_token)
    requests = _mix(options.requests, options.load / busy_s, words_per_token)
    records = await run_load(load, requests)
    sent = [
        _request(request.index, request.arrival_s, record.input_tokens or request.input_tokens, request.output_tokens)
        for request, record in zip(requests, records, strict=True)
    ]
    return records, sent


def _word_token(pair: Pair) -> int:
    """The id of a token that is text by itself."""
    asked = {"model": pair.model, "prompt": WORD, "add_special_tokens": False}
    page = httpx.post(f"{pair.decode.url}/tokenize", json=asked, timeout=30.0, trust_env=False).raise_for_status()
    token: int = page.json()["tokens"][-1]
    return token


async def _alone_s(load: LoadOptions, words_per_token: float) -> float:
    """How long a request of the mix takes with the pair to itself: measured, so that no fit decides the load."""
    took_s = []
    for number, (prompt, output) in enumerate(_lengths(ALONE_REQUESTS)):
        one = [_request(0, 0.0, round(prompt * words_per_token), output)]
        began_s = time.monotonic()
        (record,) = await run_load(replace(load, seed=load.seed + number), one)
        assert record.ok, f"the gateway does not answer: {record.error}"
        took_s.append(time.monotonic() - began_s)
    return statistics.fmean(took_s)


def _mix(count: int, rate_rps: float, words_per_token: float) -> list[TraceRequest]:
    """Poisson arrivals of the mix."""
    rng = Random(8)
    at_s, requests = 0.0, []
    for index, (prompt, output) in enumerate(_lengths(count)):
        at_s += rng.expovariate(rate_rps)
        requests.append(_request(index, at_s, round(prompt * words_per_token), output))
    return requests


def _lengths(count: int) -> list[tuple[int, int]]:
    """Prompt and output tokens: half of the prompts short, half long."""
    rng = Random(7)
    return [
        (rng.randint(*(SHORT_TOKENS if rng.random() < 0.5 else LONG_TOKENS)), rng.randint(*OUTPUT_TOKENS))
        for _ in range(count)
    ]


def _request(index: int, at_s: float, input_tokens: int, output_tokens: int) -> TraceRequest:
    """A request with a prompt of its own."""
    return TraceRequest(index=index, arrival_s=at_s, input_tokens=input_tokens, output_tokens=output_tokens)


def _predict(engine: EngineFile, sent: Sequence[TraceRequest], work: Path) -> list[Record]:
    size = engine.limits.block_tokens
    named = [
        replace(
            request,
            # The core routes by whole blocks: each prompt has its own.
            hash_ids=tuple(range(1000 * request.index, 1000 * request.index + -(-request.input_tokens // size))),
            block_tokens=size,
        )
        for request in sent
    ]
    scenario = Scenario(
        trace="",
        pools=parse_pools("1P1D"),
        engine=str(_engine_path(work)),
        policy="llmd",
        settings=(f"routing.llmd.non_cached_tokens={THRESHOLD_TOKENS}",),
        slo=SLO,
    )
    return run_workload(scenario, Workload(requests=tuple(named)), seed=0).records


def _figures(measured: Sequence[Record], predicted: Sequence[Record]) -> Iterator[Figure]:
    live, simulated = _by_path(measured), _by_path(predicted)
    for path in sorted(live):
        for name in ("TTFT", "TPOT"):
            found, expected = _p50_s(live[path], name), _p50_s(simulated.get(path), name)
            if found is not None and expected is not None:
                yield Figure(path=path, name=name, requests=live[path].requests, measured_s=found, predicted_s=expected)


def _by_path(records: Sequence[Record]) -> Mapping[str, PathSummary]:
    return summarise(records, slo=SLO, asked=len(records)).paths


def _p50_s(summary: PathSummary | None, name: str) -> float | None:
    if summary is None:
        return None
    values = summary.ttft_s if name == "TTFT" else summary.tpot_s
    return None if values is None else values.p50


def _table(figures: Sequence[Figure]) -> Table:
    names = ("requests", "measured P50, ms", "predicted P50, ms", "error")
    table = Table("path", "latency", *(Column(name, justify="right") for name in names))
    for figure in figures:
        cells = f"{1e3 * figure.measured_s:.1f}", f"{1e3 * figure.predicted_s:.1f}", f"{figure.error:+.0%}"
        table.add_row(figure.path, figure.name, str(figure.requests), *cells)
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.predict", description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="tiny", help="random weights, or SmolLM2 (slower)")
    parser.add_argument("--requests", type=int, default=200, help="of the mixed run")
    parser.add_argument("--budget", type=int, default=300, help="requests of the calibration")
    parser.add_argument("--load", type=float, default=0.4, help="requests under way on average, were none to wait")
    parser.add_argument("--within", type=float, default=0.3, help="largest error of a P50 that passes")
    parser.add_argument("--work", type=Path, help="folder for the engine file and logs, kept")
    parser.add_argument("--keep", action="store_true", help="leave the pair running for the next run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
