"""Whatever workers and clients do, in whatever order: the books balance."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.core.events import WorkerProbed
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule
from gateway.core.types import WorkerId
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    Call,
    Lab,
    Leg,
    chat_body,
    chunk,
    prefill_answer,
    usage_chunk,
    whole_answer,
)

BODIES = {
    "token": chunk("a"),
    "half a token": chunk("b")[:17],
    "usage": usage_chunk(100, 3, 50),
    "done": DONE,
    "error event": b'data: {"error": {"message": "lost"}}\n\n',
    "whole answer": whole_answer(),
    "prefill answer": prefill_answer(),
    "null parameters": prefill_answer(b"null"),
    "junk": b"\xff\x00{",
}
STATUSES = (200, 204, 301, 400, 404, 429, 500, 501, 502, 503, 504)


def _worker_speaks(act: Callable[[Leg], object], *, after_head: bool) -> Callable[[Lab, Call], None]:
    """An act of the worker that serves the call, where it can happen now."""

    def step(lab: Lab, call: Call) -> None:
        own = call.request.request_id.encode() + b"-"
        for leg in lab.pool.legs:
            if not leg.over and leg.header(b"x-request-id")[0].startswith(own) and leg.head_seen is after_head:
                act(leg)
                return

    return step


def _head(status: int, headers: Sequence[tuple[bytes, bytes]] | None) -> Callable[[Lab, Call], None]:
    return _worker_speaks(lambda leg: leg.head(status, list(headers) if headers else None), after_head=False)


def _body(piece: bytes) -> Callable[[Lab, Call], None]:
    return _worker_speaks(lambda leg: leg.send(piece), after_head=True)


def _failure(kind: ErrorKind, *, after_head: bool) -> Callable[[Lab, Call], None]:
    return _worker_speaks(lambda leg: leg.fail(kind), after_head=after_head)


def _decode_worker_goes(lab: Lab, call: Call) -> None:
    for _ in range(3):
        lab.core.observe(WorkerProbed(at_s=lab.clock(), worker_id=WorkerId("d0"), healthy=False))
    lab.services.pending.check(lab.router.health.is_down)


STEPS: dict[str, Callable[[Lab, Call], None]] = {
    **{f"head {status} sse": _head(status, None) for status in STATUSES},
    **{f"head {status} json": _head(status, JSON_HEAD) for status in STATUSES},
    **{name: _body(piece) for name, piece in BODIES.items()},
    **{f"{kind} early": _failure(kind, after_head=False) for kind in ErrorKind if kind is not ErrorKind.TRUNCATED},
    **{
        f"{kind} late": _failure(kind, after_head=True)
        for kind in (ErrorKind.TRUNCATED, ErrorKind.IDLE_TIMEOUT, ErrorKind.MALFORMED, ErrorKind.POOL_CLOSED)
    },
    "end": _worker_speaks(lambda leg: leg.end(), after_head=True),
    "prefill ok": _worker_speaks(lambda leg: leg.answer(200, prefill_answer()), after_head=False),
    "client leaves": lambda lab, call: call.journey.client_gone(),
    "client pauses": lambda lab, call: call.journey.pause(),
    "client resumes": lambda lab, call: call.journey.resume(),
    "time passes": lambda lab, call: lab.clock.advance(0.7),
    "health ticks": lambda lab, call: lab.core.tick(lab.clock()),
    "d0 goes down": _decode_worker_goes,
    "pool closes": lambda lab, call: lab.pool.close(),
}
# Most random orders would end at once; these keep requests alive longer.
LIKELY = ["prefill ok", "head 200 sse", "head 500 json", "connect_refused early", "token", "end"]
POLICIES = (AlwaysLocal(), AlwaysRemote(), DynamoRule())

steps = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(st.sampled_from(LIKELY), st.sampled_from(sorted(STEPS)))), max_size=30
)
labs = st.fixed_dictionaries(
    {
        "prefill": st.integers(0, 2),
        "decode": st.integers(0, 3),
        "path": st.sampled_from(POLICIES),
        "max_attempts": st.integers(1, 4),
        "retry_reserve": st.integers(0, 3),
    }
)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=labs, script=steps, streams=st.booleans())
@example(
    fleet={"prefill": 1, "decode": 1, "path": AlwaysRemote(), "max_attempts": 2, "retry_reserve": 1},
    script=[(0, "prefill ok"), (0, "pool closes")],
    streams=True,
)
def test_every_request_ends_once_and_holds_nothing(
    fleet: dict[str, Any], script: list[tuple[int, str]], streams: bool
) -> None:
    lab = Lab(**fleet)
    calls = [lab.call(chat_body(stream=streams), request_id=f"client-{number}") for number in range(2)]
    for number, name in script:
        STEPS[name](lab, calls[number])
        in_flight = sum(not leg.over for leg in lab.pool.legs)
        assert len(lab.router.ledger) == in_flight == lab.count("inflight_requests")
        assert lab.count("requests_total") == len(lab.records.kept) == len(calls) - in_flight
    for call in calls:
        call.journey.client_gone()
    lab.check_settled()
    for call, outcome in ((call, _outcome_of(lab, call)) for call in calls):
        assert call.sink.ended or outcome == "cancelled"


def _outcome_of(lab: Lab, call: Call) -> str:
    (kind,) = [outcome.kind for _, outcome, request_id, _ in lab.records.kept if request_id == call.request.request_id]
    return kind.value
