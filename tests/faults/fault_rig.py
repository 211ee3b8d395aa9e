"""Emulated workers that can be told to misbehave, the real gateway before them, and a client; all on loopback.

Each test has workers and a gateway of its own, so that every count begins at zero. Making them is quick and taking
them down is not: that goes on in the background until all tests have ended (`Closing`).
"""

import asyncio
import itertools
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import msgspec
import uvicorn

from gateway.app import Gateway, open_gateway
from gateway.core.hashing import hash64, rank_of
from gateway.core.types import WorkerId
from gateway.settings import Settings
from gateway.telemetry.decisions import read_decision_log
from gateway.upstream.exchange import Exchange, Limits, ResponseListener
from gateway.upstream.heads import UpstreamRequest
from gateway.upstream.origin import Origin
from gateway.upstream.pool import UpstreamPool
from gateway.wire.decision_record import DecisionRecord
from loadtest.worker.config import WorkerConfig
from loadtest.worker.control import FAULTS_PATH
from loadtest.worker.server import BoundWorker, serve_workers

MODEL = "tiny-llama"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
PATIENCE_S = 60.0
SPEED = 50.0
TOKENS = 12
LONG_S = 30.0
"""A delay that no test sees the end of."""
TEXT = "the quick brown fox jumps over the lazy dog " * 20
PREFILL = ("p0", "p1")
DECODE = ("d0", "d1")
ASIDE = "aside"
"""A worker that the gateway does not know: it says what the right answer is, and switches the others' faults."""
IDLE = "idle and holds nothing"
HOLDING = "idle and holds KV"
PATIENT = {"connect_timeout_s": 20.0, "first_byte_timeout_s": 60.0, "idle_timeout_s": 60.0}
NO_HEAD = {"first_byte_timeout_s": 0.1}
NO_BODY = {"idle_timeout_s": 0.1}
"""For faults that only a limit ends. They are set for faulty workers alone: the others' answers have all the time that
a busy machine needs, so neither waits for the other."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')


# --- requests and answers -------------------------------------------------------------------------------------------


def body_for(path: str, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """A request whose answer depends on its body alone and has `TOKENS` tokens."""
    fields = {"model": MODEL, "ignore_eos": True, "seed": 7, "stream": stream} | fields
    match path:
        case "/v1/completions":
            return {"prompt": TEXT, "max_tokens": TOKENS} | fields
        case "/v1/responses":
            return {"input": TEXT, "max_output_tokens": TOKENS} | fields
        case _:
            return {"messages": [{"role": "user", "content": TEXT}], "max_tokens": TOKENS} | fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a client got."""

    status: int
    headers: httpx.Headers
    body: bytes
    whole: bool
    """False where the connection ended before the answer did."""

    def json(self) -> Any:
        return json.loads(self.body)

    def data(self) -> list[str]:
        """The data of every event; each must be whole."""
        events = self.body.decode().strip("\n").split("\n\n")
        return [event.partition("data: ")[2] for event in events if event]

    def events(self) -> list[Any]:
        """The events of an OpenAI stream, which must end with `[DONE]` and have it once."""
        *events, done = self.data()
        assert done == "[DONE]"
        return [json.loads(event) for event in events]

    @property
    def text(self) -> str:
        """The text of a whole answer or of a stream, of chat or completions."""
        if self.headers["content-type"].startswith("text/event-stream"):
            answers = [event for event in self.events() if "choices" in event]
        else:
            answers = [self.json()]
        return "".join(text_of(choice) for answer in answers for choice in answer["choices"])

    def error(self, *, stream: bool) -> dict[str, Any]:
        """The error of an answer in OpenAI's shape, whole or as a stream's last event."""
        document = self.events()[-1] if stream else self.json()
        assert document.keys() == {"error"}
        assert document["error"].keys() == {"message", "type", "param", "code"}
        return dict(document["error"])


def text_of(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


def ids_preferring(*workers: str) -> Iterator[str]:
    """Request ids for which each of these workers comes before its even neighbour."""
    for number in itertools.count():
        request_id = f"fault-{number}"
        if all(_first(request_id, pool) in workers for pool in (PREFILL, DECODE) if {*pool} & {*workers}):
            yield request_id


def _first(request_id: str, pool: Iterable[str]) -> str:
    return min(pool, key=lambda worker: rank_of(hash64(request_id), worker))


# --- the parts --------------------------------------------------------------------------------------------------------


class Closing:
    """What is being taken down in the background."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, task: asyncio.Task[None]) -> None:
        self._tasks.append(task)

    async def wait(self) -> None:
        await asyncio.gather(*self._tasks)


@dataclass(slots=True)
class Fleet:
    """The workers, and the switches of their faults."""

    bound: dict[str, BoundWorker]
    client: httpx.AsyncClient
    faulty: set[str] = field(default_factory=set)

    def url(self, worker: str) -> str:
        return self.bound[worker].url

    async def fault(self, worker: str, kind: str, **fields: Any) -> None:
        """Turn a fault on, by way of a sibling."""
        answer = await self.client.put(self._switches(worker), json={"kind": kind} | fields)
        assert answer.status_code == 200, answer.text
        self.faulty.add(worker)

    async def clear(self, *workers: str) -> None:
        """Turn every fault of these workers off, or of all."""
        for worker in workers or sorted(self.faulty):
            self.faulty.discard(worker)
            assert (await self.client.delete(self._switches(worker))).status_code == 200

    async def fired(self, worker: str) -> int:
        """How many calls got a fault there."""
        report = (await self.client.get(self._switches(worker))).json()
        return sum(fault["fired"] for fault in report["faults"])

    async def reference(self, path: str, body: dict[str, Any]) -> Reply:
        """The right answer."""
        return await ask(self.client, self.url(ASIDE) + path, body)

    async def samples(self, worker: str) -> "Samples":
        return Samples((await self.client.get(self.url(worker) + "/metrics")).text)

    async def ended(self, worker: str) -> Counter[str]:
        """The sequences that a worker has run, by how they ended."""
        found = (await self.samples(worker)).by("vllm:request_success_total", "finished_reason")
        return Counter({reason: int(count) for (reason,), count in found.items()})

    async def failed_transfers(self) -> int:
        """KV that decode workers were promised and could not claim: what was used before is not there any more."""
        counts = [(await self.samples(worker)).sum("vllm:nixl_num_failed_transfers_total") for worker in DECODE]
        return int(sum(counts))

    async def until_idle(self, *, holding: Iterable[str] = ()) -> None:
        """Until no worker runs or queues anything, and only those named hold KV."""
        for worker in (*PREFILL, *DECODE):
            load = IDLE if worker not in holding else HOLDING
            await until(partial(self._has, worker, load), what=f"{worker} is {load}")

    async def _has(self, worker: str, load: str) -> bool:
        samples = await self.samples(worker)
        busy = samples.sum("vllm:num_requests_running") + samples.sum("vllm:num_requests_waiting")
        holds = samples.sum("vllm:kv_cache_usage_perc") > 0
        return not busy and holds == (load == HOLDING)

    def _switches(self, worker: str) -> str:
        return f"{self.url(ASIDE)}{FAULTS_PATH}?worker={worker}"


class Samples:
    """One reading of a /metrics page."""

    def __init__(self, text: str) -> None:
        self._text = text

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The sums of a metric that are not zero, by these labels."""
        sums: dict[tuple[str, ...], float] = {}
        for found, value in self._samples(name):
            key = tuple(found[label] for label in labels)
            sums[key] = sums.get(key, 0.0) + value
        return {key: value for key, value in sums.items() if value}

    def sum(self, name: str) -> float:
        """The sum of a metric, which must be there."""
        values = [value for _, value in self._samples(name)]
        assert values, f"no metric {name}"
        return sum(values)

    def _samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """A whole page has hundreds of samples, and few are asked for: only these are parsed."""
        for line in re.findall(rf"^{re.escape(name)}[{{ ].*$", self._text, re.MULTILINE):
            yield dict(_LABEL.findall(line)), float(line.rpartition(" ")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one request is to have ended, in all of the gateway's books."""

    outcome: str = "ok"
    status: int = 200
    path: str
    worker: str
    prefill: str | None = None
    attempt: int = 1
    retries: Mapping[str, int] = field(default_factory=dict)
    """Attempts given up, by cause."""
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Failed legs by worker and kind."""
    blamed: frozenset[str] = frozenset()
    """Workers against which a failure counts."""
    holding: frozenset[str] = frozenset()
    """Prefill workers whose KV no decode leg ever claimed: only its lease frees it."""


@dataclass(slots=True)
class Gate:
    """One gateway and its books."""

    gateway: Gateway
    url: str
    log: Path
    fleet: Fleet
    client: httpx.AsyncClient

    async def ask(self, path: str, body: dict[str, Any], request_id: str | None = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["x-request-id"] = request_id or next(ids_preferring("p0", "d0"))
        return await ask(self.client, self.url + path, body, sent)

    async def samples(self) -> Samples:
        return Samples((await self.client.get(self.url + "/metrics")).text)

    async def records(self, count: int) -> list[DecisionRecord]:
        """All records, of which there must be `count`."""
        await until(lambda: self.gateway.decisions.written >= count, what=f"{count} records are written")
        records = list(read_decision_log(self.log))
        assert len(records) == count
        return records

    async def ended(self, ending: Ending) -> DecisionRecord:
        """Check the books of the only request: record, counters, gauges, health, and that the workers are free."""
        (record,) = await self.records(1)
        decision = record.decision
        assert decision is not None
        assert (record.outcome.kind, record.outcome.status) == (ending.outcome, ending.status)
        assert (decision.path, decision.prefill_worker) == (ending.path, ending.prefill)
        assert (decision.decode_worker, decision.attempt) == (ending.worker, ending.attempt)
        samples = await self.samples()
        assert samples.by("tidegate_requests_total", "outcome", "path") == {(ending.outcome, ending.path): 1}
        assert samples.by("tidegate_retries_total", "cause") == {(kind,): n for kind, n in ending.retries.items()}
        assert samples.by("tidegate_upstream_errors_total", "worker", "kind") == ending.errors
        assert self.blamed() == ending.blamed
        await self.nothing_left(samples, holding=ending.holding)
        return record

    async def nothing_left(self, samples: Samples | None = None, *, holding: Iterable[str] = ()) -> None:
        """Nothing is in flight, here or at a worker; faults are turned off to be able to ask."""
        assert len(self.gateway.router.ledger) == 0
        samples = samples or await self.samples()
        for gauge in ("inflight_requests", "worker_inflight_requests", "worker_inflight_tokens"):
            assert samples.by(f"tidegate_{gauge}") == {}, gauge
        await self.fleet.clear()
        await self.fleet.until_idle(holding=holding)

    def blamed(self) -> set[str]:
        """The workers with a failure on their account."""
        known = self.gateway.registry.members
        return {worker_id for worker_id in known if self.gateway.router.health.get(worker_id).failures}

    def state(self, worker: str) -> str:
        """A worker's breaker."""
        return self.gateway.router.health.get(WorkerId(worker)).state


@dataclass(slots=True)
class Rig:
    """What one test works with."""

    fleet: Fleet
    stack: AsyncExitStack
    folder: Path
    closing: Closing
    probing: httpx.AsyncBaseTransport

    async def gate(
        self,
        policy: str,
        *,
        hasty: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        workers: Iterable[str] = (*PREFILL, *DECODE),
        urls: Mapping[str, str] | None = None,
        upstream: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> Gate:
        """Start a gateway. It looks at its workers once, and again only where `sections` say so.

        `hasty` has limits for legs to single workers, in the place of those of the settings.
        """
        log = self.folder / "decisions.jsonl"
        tree: dict[str, Any] = {
            "workers": [
                {"id": name, "url": (urls or {}).get(name, self.fleet.url(name)), "role": role_of(name)}
                for name in workers
            ],
            "admin": {"port": None},
            "routing": {"policy": policy},
            "fleet": {"probe_interval_s": 3600, "scrape_interval_s": 3600, "sample_max_age_s": 3600},
            "upstream": {"prefill": PATIENT, "decode": PATIENT, **(upstream or {})},
            "telemetry": {"decision_log": log, "request_log": False},
        }
        settings = Settings(**(tree | sections))
        opening = open_gateway(settings, instance="gw", transport=self.probing)
        gateway = await self.stack.enter_async_context(opening)
        _be_hasty(gateway.pool, {self.fleet.bound[name].port: limits for name, limits in hasty.items()})
        url = await self.stack.enter_async_context(_served(gateway, self.closing))
        return Gate(gateway, url, log, self.fleet, self.fleet.client)

    async def is_right(self, reply: Reply, path: str = CHAT) -> None:
        """The answer is complete, and the one that a worker without faults gives."""
        reference = await self.fleet.reference(path, body_for(path))
        assert (reply.status, reply.whole) == (200, True)
        assert reply.text == reference.text
        assert len(reply.text) == TOKENS * 4


class KeptTransport(httpx.AsyncBaseTransport):
    """Connections that many clients use one after the other, so that none reads the authorities' certificates anew."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self._transport = httpx.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(request)

    async def close(self) -> None:
        """The end; that of a single client changes nothing."""
        await self._transport.aclose()


def _be_hasty(pool: UpstreamPool, limits_by_port: Mapping[int, Mapping[str, Any]]) -> None:
    start = pool.start

    def start_within(
        origin: Origin, request: UpstreamRequest, listener: ResponseListener, limits: Limits | None = None
    ) -> Exchange:
        if limits is not None and origin.port in limits_by_port:
            limits = replace(limits, **limits_by_port[origin.port])
        return start(origin, request, listener, limits)

    if limits_by_port:
        pool.start = start_within  # type: ignore[method-assign]


def role_of(worker: str) -> str:
    return "prefill" if worker in PREFILL else "decode"


# --- how they are made ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_fleet(client: httpx.AsyncClient, closing: Closing, **settings: Any) -> AsyncIterator[Fleet]:
    """All workers; `settings` are those of `WorkerConfig`."""
    plain = {"engine": "h100-llama8b", "model": MODEL, "speed": SPEED} | settings
    configs = [msgspec.convert(plain | {"name": name}, WorkerConfig) for name in (*PREFILL, *DECODE, ASIDE)]
    stop = asyncio.Event()
    ready: asyncio.Future[list[BoundWorker]] = asyncio.get_running_loop().create_future()
    closing.add(asyncio.create_task(serve_workers(configs, stop=stop, on_ready=ready.set_result)))
    try:
        yield Fleet({worker.name: worker for worker in await ready}, client)
    finally:
        stop.set()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _served(gateway: Gateway, closing: Closing) -> AsyncIterator[str]:
    config = uvicorn.Config(
        gateway.asgi, http=gateway.http, ws="none", lifespan="off", access_log=False, log_config=None
    )
    server = _Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    closing.add(asyncio.create_task(server.serve(sockets=[listener])))
    await until(lambda: server.started, what="the gateway listens")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True


async def ask(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Reply:
    """POST, and take all that comes before the answer or the connection ends."""
    received, whole = bytearray(), True
    async with client.stream("POST", url, json=body, headers=dict(headers or {})) as response:
        try:
            async for piece in response.aiter_raw():
                received += piece
        except httpx.RemoteProtocolError:
            whole = False
    return Reply(status=response.status_code, headers=response.headers, body=bytes(received), whole=whole)


async def until(condition: Callable[[], Any], *, what: str) -> None:
    """Ask again until it holds."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                held = condition()
                if (await held) if asyncio.iscoroutine(held) else held:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still not so after {PATIENCE_S:g} s: {what}") from None
