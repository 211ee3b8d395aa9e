"""One measured run: load, summary and reconciliation.

The rule of this module: the gateway's metrics are read just before and after the load, so that what it counted can
be held against what the client saw.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import msgspec

from gateway.core.types import SloTarget
from loadtest.client.http import HttpClient, HttpError, Origin
from loadtest.client.options import LoadOptions
from loadtest.client.reconcile import PREFIX, ReconcileRow, reconcile
from loadtest.client.records import Record, scaled, write_records
from loadtest.client.runner import Progress, run_load, warm_up
from loadtest.report.conversations import ConversationRecord, conversations, write_conversations
from loadtest.report.summary import Summary, summarise
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

SETTLE_TRIES = 20
SETTLE_PAUSE_S = 0.1
"""A gateway counts a request just after its last byte: the last pages may be a moment behind the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run's outcome; times are in seconds of the engine, that is, multiplied by the options' speed."""

    records: list[Record]
    summary: Summary
    reconciliation: list[ReconcileRow]
    """In real seconds; empty where the server is no Tidegate."""
    conversations: Sequence[ConversationRecord] = ()
    """Those that were begun, in order of their beginning; none where the trace knows no sessions."""


async def measure(
    options: LoadOptions,
    load: Sequence[TraceRequest] | Workload,
    slo: SloTarget,
    *,
    metrics_url: str | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    stop: asyncio.Event | None = None,
) -> Measurement:
    """Runs a load, as `run_load` takes it, and works it up.

    `metrics_url` is `/metrics` on the load's own host and port unless given.
    """
    page_url = metrics_url or urljoin(options.url, "/metrics")
    await warm_up(options)
    before = await _page(page_url, options.timeout_s)
    records = await run_load(options, load, on_progress=on_progress, stop=stop)
    rows = await _settled(records, before, page_url, options.timeout_s)
    in_engine_time = [scaled(record, options.speed) for record in records]
    requests = load.flattened() if isinstance(load, Workload) else load
    return Measurement(
        records=in_engine_time,
        summary=summarise(in_engine_time, slo, asked=len(requests)),
        reconciliation=rows,
        conversations=conversations(requests, in_engine_time),
    )


def write_measurement(directory: Path, measurement: Measurement) -> None:
    """Writes `records.jsonl`, `summary.json` and, where there are any, `conversations.jsonl`.

    The directory is made where it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_records(directory / "records.jsonl", measurement.records)
    summary = msgspec.json.format(msgspec.json.encode(measurement.summary), indent=2)
    (directory / "summary.json").write_bytes(summary + b"\n")
    if measurement.conversations:
        write_conversations(directory / "conversations.jsonl", measurement.conversations)


async def _settled(records: Sequence[Record], before: str, page_url: str, timeout_s: float) -> list[ReconcileRow]:
    """The reconciliation once the gateway has counted everything, or after the last try."""
    rows: list[ReconcileRow] = []
    for _ in range(SETTLE_TRIES):
        rows = reconcile(records, before, await _page(page_url, timeout_s))
        if all(row.equal is not False for row in rows):
            break
        await asyncio.sleep(SETTLE_PAUSE_S)
    return rows


async def _page(url: str, timeout_s: float) -> str:
    """The page's text; empty where there is none or it is not a Tidegate's."""
    client = HttpClient(Origin.of(url))
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await client.get(urlsplit(url).path)
    except (HttpError, TimeoutError):
        return ""
    finally:
        client.close()
    text = body.decode("utf-8", "replace")
    return text if status == 200 and PREFIX in text else ""
