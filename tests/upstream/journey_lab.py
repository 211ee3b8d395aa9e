"""A journey under glass: the real core and telemetry, workers that the test speaks for, and a clock that it moves."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from gateway.core.conversation.rules import ConversationRules
from gateway.core.events import Event, Finished, PrefillLost, WorkerUp
from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import NO_EXCLUSIONS, Router
from gateway.core.types import (
    Decision,
    DecisionId,
    Endpoint,
    Outcome,
    Path,
    Refusal,
    RequestFacts,
    RequestId,
    Role,
    WorkerId,
    WorkerSpec,
)
from gateway.core.waiting import Ticket, Wait
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.request import RequestTelemetry
from gateway.upstream.budget import RetryBudget
from gateway.upstream.calling import CallingCore
from gateway.upstream.errors import (
    BrokenResponse,
    ConnectFailed,
    ErrorKind,
    FirstByteTimeout,
    IdleTimeout,
    PoolClosed,
    UpstreamError,
)
from gateway.upstream.exchange import Exchange, Limits, ResponseListener
from gateway.upstream.heads import UpstreamRequest, build_head
from gateway.upstream.journey import Journey
from gateway.upstream.origin import Origin
from gateway.upstream.pool import UpstreamPool
from gateway.upstream.services import ClientRequest, Headers, Services
from gateway.wire.conversation_names import ConversationNames, ConversationReader
from gateway.wire.dialects import ROUTES, Dialect
from gateway.wire.openai import peek
from gateway.wire.peeked import Peeked

MODEL = "llama"
SSE_HEAD: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"transfer-encoding", b"chunked")]
JSON_HEAD: Headers = [(b"content-type", b"application/json"), (b"x-worker", b"yes")]
DONE = b"data: [DONE]\n\n"
KV_PARAMS = b'{"do_remote_prefill":true,"remote_block_ids":[[1, 2]],"remote_num_tokens":9007199254740993,"ttl":1e-2}'
PREFILL_SECRET = "never-shown"
PREFILL_LIMITS = Limits(first_byte_timeout_s=7.0)
DECODE_LIMITS = Limits(first_byte_timeout_s=9.0)
STARTED_AT_S = 1000.0


def chat_body(*, stream: bool = True, prompt_chars: int = 400, **fields: Any) -> bytes:
    """A chat long enough to fill KV blocks, so that no rule keeps it local."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * prompt_chars}], "stream": stream}
    return json.dumps(body | fields).encode()


def chunk(text: str) -> bytes:
    """One content event of a chat stream."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def usage_chunk(prompt: int, completion: int, cached: int = 0) -> bytes:
    """The last event of a stream with include_usage."""
    return b"data: " + json.dumps({"choices": [], "usage": usage(prompt, completion, cached)}).encode() + b"\n\n"


def whole_answer(text: str = "hello", *, prompt: int = 100, completion: int = 5) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": usage(prompt, completion)}).encode()


def prefill_answer(kv_transfer_params: bytes = KV_PARAMS) -> bytes:
    """What a prefill worker says: one token of text that nobody may see, and where the blocks are."""
    text = whole_answer(PREFILL_SECRET, completion=1)
    return text[:-1] + b', "kv_transfer_params": ' + kv_transfer_params + b"}"


def upstream_error(origin: Origin, kind: ErrorKind, *, head_seen: bool = False) -> UpstreamError:
    """The failure as the pool reports it."""
    match kind:
        case ErrorKind.FIRST_BYTE_TIMEOUT:
            return FirstByteTimeout(origin, 1.0)
        case ErrorKind.IDLE_TIMEOUT:
            return IdleTimeout(origin, 1.0)
        case ErrorKind.POOL_CLOSED:
            return PoolClosed(origin)
        case ErrorKind.CLOSED_BEFORE_HEAD | ErrorKind.TRUNCATED | ErrorKind.MALFORMED:
            return BrokenResponse(origin, kind, "broken", retryable_elsewhere=not head_seen)
        case _:
            return ConnectFailed(origin, kind, "no connection")


class VirtualClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = STARTED_AT_S

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Leg:
    """One request as a worker got it. The test answers for the worker; the journey holds it as its exchange."""

    def __init__(
        self, origin: Origin, request: UpstreamRequest, listener: ResponseListener, limits: Limits | None
    ) -> None:
        self.origin = origin
        self.worker = WorkerId(origin.host)
        self.target = request.target
        self.body = b"".join(request.segments)
        self.sent_head = build_head(request, origin)
        self.limits = limits
        self.aborted = False
        self.paused = False
        self.head_seen = False
        self.over = False
        self._listener = listener

    @property
    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded

    def header(self, name: bytes) -> list[bytes]:
        """All values of a header that the worker got."""
        lines = self.sent_head.split(b"\r\n")[1:]
        return [value for line in lines for key, _, value in [line.partition(b": ")] if key.lower() == name]

    # the journey's side

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        if not self.over:
            self.over = self.aborted = True

    # the worker's side

    def head(self, status: int = 200, headers: Headers | None = None) -> "Leg":
        assert not self.over
        assert not self.head_seen
        self.head_seen = True
        self._listener.on_head(status, SSE_HEAD if headers is None else headers)
        self._lull()
        return self

    def send(self, *pieces: bytes) -> "Leg":
        for piece in pieces:
            assert not self.over
            self._listener.on_body(piece)
            self._lull()
        return self

    def end(self) -> None:
        assert not self.over
        self.over = True
        self._listener.on_end()

    def fail(self, kind: ErrorKind) -> None:
        assert not self.over
        self.over = True
        self._listener.on_error(upstream_error(self.origin, kind, head_seen=self.head_seen))

    def _lull(self) -> None:
        """Every call here is a read of its own."""
        if not self.over:
            self._listener.on_lull()

    def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole answer at once."""
        self.head(status, JSON_HEAD if headers is None else headers).send(body).end()

    def stream(self, *pieces: bytes) -> None:
        """A whole stream at once."""
        self.head().send(*pieces).end()


class FakePool:
    """Stands in for `UpstreamPool`: keeps what is started, and never calls back by itself."""

    def __init__(self) -> None:
        self.legs: list[Leg] = []
        self.closed = False

    def start(
        self, origin: Origin, request: UpstreamRequest, listener: ResponseListener, limits: Limits | None = None
    ) -> Exchange:
        if self.closed:
            raise PoolClosed(origin)
        leg = Leg(origin, request, listener, limits)
        self.legs.append(leg)
        return cast("Exchange", leg)

    def close(self) -> None:
        """What `aclose` does: refuse what comes, fail what is in flight."""
        self.closed = True
        for leg in [leg for leg in self.legs if not leg.over]:
            leg.fail(ErrorKind.POOL_CLOSED)


class RecordingSink:
    """A client's side that insists on the order of its calls."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Headers = []
        self.body = b""
        self.flushed = b""
        """Of the body, what need not wait for more."""
        self.finished = False
        self.broken = False

    @property
    def ended(self) -> bool:
        return self.finished or self.broken

    def header(self, name: bytes) -> bytes | None:
        """The one value of a header, or None."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"{name!r} was sent {len(values)} times"
        return values[0] if values else None

    def error(self) -> dict[str, Any]:
        """The error of an OpenAI error body."""
        decoded: dict[str, Any] = json.loads(self.body)["error"]
        return decoded

    def start(self, status: int, headers: Headers) -> None:
        assert self.status is None, "two heads"
        assert not self.ended
        self.status, self.headers = status, headers

    def write(self, data: bytes) -> None:
        assert self.status is not None, "a body before its head"
        assert not self.ended, "a body after its end"
        self.body += data

    def flush(self) -> None:
        assert self.status is not None, "nothing to flush"
        assert not self.ended
        self.flushed = self.body

    def finish(self) -> None:
        assert self.status is not None
        assert not self.ended
        self.flushed = self.body
        self.finished = True

    def break_off(self) -> None:
        assert not self.ended
        self.broken = True


class WatchedCore:
    """The real router, and a list of what it was told."""

    def __init__(self, router: Router, clock: VirtualClock) -> None:
        self.decision_takes_s = 0.0
        self._router = router
        self._clock = clock
        self.decisions: list[Decision] = []
        self.refusals: list[Refusal] = []
        self.events: list[Event] = []
        self.blamed: list[WorkerId] = []
        self.ends: Counter[DecisionId] = Counter()

    def submit(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
    ) -> Decision | Refusal | Wait:
        routed = self._router.submit(facts, now_s, exclude=exclude, attempt=attempt)
        self._clock.advance(self.decision_takes_s)
        if not isinstance(routed, Wait):
            self._routed(routed)
        return routed

    def release(self, now_s: float) -> list[tuple[Ticket, Decision | Refusal]]:
        released = self._router.release(now_s)
        for _, routed in released:
            self._routed(routed)
        return released

    def give_up(self, ticket: Ticket) -> None:
        self._router.give_up(ticket)

    def _routed(self, routed: Decision | Refusal) -> None:
        if isinstance(routed, Decision):
            self.decisions.append(routed)
        else:
            self.refusals.append(routed)

    def adopt(self, policy: Policy) -> None:
        self._router.adopt(policy)

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        self._router.abort(decision_id, now_s, blame=blame)
        self.ends[decision_id] += 1
        if blame is not None:
            self.blamed.append(blame)

    def observe(self, event: Event) -> None:
        self._router.observe(event)
        self.events.append(event)
        if isinstance(event, Finished):
            self.ends[event.decision_id] += 1
        if isinstance(event, Finished | PrefillLost) and event.blame is not None:
            self.blamed.append(event.blame)

    def tick(self, now_s: float) -> None:
        self._router.tick(now_s)

    def names(self) -> list[str]:
        """The events in order, by name."""
        return [type(event).__name__ for event in self.events]


class KeptRecords(DecisionLog):
    """A decision log that also keeps what was appended."""

    def __init__(self) -> None:
        super().__init__(None)
        self.kept: list[tuple[Decision | Refusal | None, Outcome, RequestId, str | None]] = []

    def append(
        self,
        routed: Decision | Refusal | None,
        outcome: Outcome,
        *,
        request_id: RequestId,
        model: str | None,
    ) -> None:
        super().append(routed, outcome, request_id=request_id, model=model)
        self.kept.append((routed, outcome, request_id, model))


class KeptLog:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, Any]]] = []

    def is_enabled_for(self, level: int) -> bool:
        return True

    def log(self, level: int, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))


class Call:
    """One request of a client: its journey and what the client got."""

    def __init__(self, lab: "Lab", request: ClientRequest, peeked: Peeked) -> None:
        self.request = request
        self.sink = RecordingSink()
        self.journey = Journey(lab.services, request, peeked, self.sink)
        self.journey.begin()


class Lab:
    """A small fleet `p0, p1, ...`, `d0, d1, ...` and everything that a journey needs."""

    def __init__(
        self,
        *,
        prefill: int = 2,
        decode: int = 2,
        path: PathPolicy | None = None,
        conversation: ConversationRules | None = None,
        kv_total_blocks: int | None = None,
        max_attempts: int = 3,
        retry_reserve: int = 10,
    ) -> None:
        self.clock = VirtualClock()
        policy = Policy(path=path or AlwaysRemote(), conversation=conversation or ConversationRules())
        self.router = Router(policy, rng=Random(1), instance="gw")
        self.core = WatchedCore(self.router, self.clock)
        self.pool = FakePool()
        self.metrics = Metrics(slos=(policy.slo.default,))
        self.records = KeptRecords()
        self.log = KeptLog()
        self.requests = 0
        workers = [*(f"p{i}" for i in range(prefill)), *(f"d{i}" for i in range(decode))]
        for name in workers:
            self.router.observe(WorkerUp(at_s=0.0, spec=_spec(name, kv_total_blocks)))
        telemetry = RequestTelemetry(
            metrics=self.metrics,
            decisions=self.records,
            logger=cast("FilteringBoundLogger", self.log),
        )
        self.calling = CallingCore(self.core)
        self.services = Services(
            core=self.calling,
            expect=self.calling.expect,
            pool=cast("UpstreamPool", self.pool),
            origins={WorkerId(name): Origin(host=name, port=8000) for name in workers},
            prefill_limits=PREFILL_LIMITS,
            decode_limits=DECODE_LIMITS,
            budget=RetryBudget(ratio=0.0, reserve=retry_reserve),
            max_attempts=max_attempts,
            telemetry=telemetry,
            clock=self.clock,
        )

    @classmethod
    def on(cls, path: Path, **changes: Any) -> "Lab":
        """A fleet whose policy always takes this path."""
        return cls(path=AlwaysLocal() if path is Path.LOCAL else AlwaysRemote(), **changes)

    @classmethod
    def local(cls, **changes: Any) -> "Lab":
        """A fleet whose policy is always local."""
        return cls.on(Path.LOCAL, **changes)

    def call(
        self,
        body: bytes | None = None,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        endpoint: Endpoint = Endpoint.CHAT,
        request_id: str = "req-1",
        peeked: Peeked | None = None,
        dialect: Dialect | None = None,
        hide_usage: bool = False,
        own_headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Call:
        """A client's request arrives and is begun."""
        body = chat_body() if body is None else body
        target = b"/v1/chat/completions" if endpoint is Endpoint.CHAT else b"/v1/completions"
        request = ClientRequest(
            request_id=RequestId(request_id),
            method=b"POST",
            target=target,
            headers=[(b"content-type", b"application/json"), *headers],
            body=body,
            arrived_s=self.clock(),
            dialect=dialect or ROUTES[target.decode()],
            hide_usage=hide_usage,
            own_headers=own_headers,
        )
        self.requests += 1
        return Call(self, request, peeked or self.peek(body, endpoint, headers))

    def peek(self, body: bytes, endpoint: Endpoint, headers: Sequence[tuple[bytes, bytes]] = ()) -> Peeked:
        reader = ConversationReader(names=ConversationNames())
        found = peek(body, endpoint, request_id=RequestId("facts"), headers=headers, conversation=reader)
        assert isinstance(found, Peeked), found
        return found

    @property
    def leg(self) -> Leg:
        """The leg that was started last."""
        return self.pool.legs[-1]

    def count(self, sample: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(
            found.value
            for samples in self.metrics.samples().values()
            for found in samples
            if found.name == f"tidegate_{sample}" and labels.items() <= found.labels.items()
        )

    def outcome(self) -> Outcome:
        """The one record's outcome."""
        ((_, outcome, _, _),) = self.records.kept
        return outcome

    def failures(self) -> Mapping[WorkerId, float]:
        """The failures that count against each worker, where there are any."""
        counts = {state.spec.worker_id: self.router.health.get(state.spec.worker_id) for state in self.router.fleet}
        return {worker_id: health.failures for worker_id, health in counts.items() if health.failures}

    def check_settled(self) -> None:
        """Every request has ended, once for everybody who counts, and holds nothing any more."""
        assert len(self.router.ledger) == 0
        for state in self.router.fleet:
            tally = self.router.ledger.tally(state.spec.worker_id)
            assert (tally.requests, tally.prefill_tokens, tally.kv_tokens) == (0, 0, 0)
        assert self.core.ends == Counter(decision.decision_id for decision in self.core.decisions)
        assert self.count("inflight_requests") == 0
        assert self.count("requests_total") == self.requests
        assert self.count("request_duration_seconds_count") == self.requests
        assert len(self.records.kept) == self.requests
        assert [event for event, _ in self.log.lines] == ["request.finished"] * self.requests
        assert all(leg.over for leg in self.pool.legs)


def _spec(name: str, kv_total_blocks: int | None) -> WorkerSpec:
    return WorkerSpec(
        worker_id=WorkerId(name),
        url=f"http://{name}:8000",
        role=Role.PREFILL if name.startswith("p") else Role.DECODE,
        models=(MODEL,),
        kv_block_tokens=16,
        kv_total_blocks=kv_total_blocks,
    )
