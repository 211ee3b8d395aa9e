"""Who chooses the engines of a simulated fleet.

The rule of this module: a dispatcher hears what a gateway would hear, when it would hear it, and nothing else; what is
foretold of an answer's length is said when the core is made.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Protocol

from gateway.core.calibration import Calibration
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.events import Dispatched, Finished, FirstToken, Prefilled, WorkerSampled, WorkerUp
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.slo import attained
from gateway.core.types import (
    Decision,
    Endpoint,
    Outcome,
    OutcomeKind,
    Path,
    Refusal,
    RequestFacts,
    RequestId,
    WorkerSample,
    WorkerSpec,
)
from gateway.core.waiting import Ticket, Wait
from loadtest.engine.types import EngineSnapshot
from loadtest.simulator.flight import Flight
from loadtest.simulator.lengths import Foretold, Lengths
from loadtest.traces.types import TraceRequest

BYTES_PER_TOKEN_ID = 4


class Dispatcher(Protocol):
    """Chooses where each request goes, and may learn from how it went."""

    def arrived(self, flight: Flight, now_s: float) -> None:
        """Set the flight's engines, or its error. A remote flight's decode engine may be left open."""

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """The prefill leg ended; the decode engine must be set now."""

    def first_token(self, flight: Flight, now_s: float) -> None:
        """The first token arrived."""

    def ended(self, flight: Flight, now_s: float) -> None:
        """The request ended, well or not."""

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """An engine's metrics were scraped."""

    def released(self, now_s: float) -> Sequence[Flight]:
        """Flights that waited, with no engine or error when they arrived, and have one now."""


class CoreDispatcher:
    """The gateway's own decision core.

    Prompts are told to it as token ids, so that it counts them exactly, in the blocks of the trace. The core breaks
    ties by request id: with the `run_id` of a live run its requests have the ids that they had there. Of an answer's
    length it is told what `lengths` says, and where that is a prediction, `foretold` makes it.
    """

    def __init__(
        self,
        policy: Policy,
        workers: list[WorkerSpec],
        *,
        model: str,
        seed: int,
        run_id: str | None = None,
        lengths: Lengths = Lengths.LIMIT,
        foretold: Foretold | None = None,
        instance: str = "sim",
    ) -> None:
        rng = Random(seed)  # noqa: S311 (not a secret)
        calibration = None if foretold is None else _Believing()
        self.router = Router(policy, rng=rng, instance=instance, calibration=calibration)
        self._foretold = foretold
        self._tells_limits = lengths is Lengths.LIMIT
        self._model = model
        self._waiting: dict[Ticket, Flight] = {}
        self._id_prefix = "" if run_id is None else f"{run_id}-"
        self._worker_ids = [worker.worker_id for worker in workers]
        self._place = {worker.worker_id: place for place, worker in enumerate(workers)}
        for worker in workers:
            self.router.observe(WorkerUp(at_s=0.0, spec=worker))

    def arrived(self, flight: Flight, now_s: float) -> None:
        """Ask the core, and tell it that the first leg is on its way."""
        routed = self.router.submit(self._facts(flight.request), now_s)
        if isinstance(routed, Wait):
            self._waiting[routed.ticket] = flight
        else:
            self._route(flight, routed, now_s)

    def released(self, now_s: float) -> Sequence[Flight]:
        """Those that the core kept waiting and has routed."""
        if not self._waiting:
            return ()
        flights = []
        for ticket, routed in self.router.release(now_s):
            flight = self._waiting.pop(ticket)
            self._route(flight, routed, now_s)
            flights.append(flight)
        return flights

    def _route(self, flight: Flight, decision: Decision | Refusal, now_s: float) -> None:
        if not isinstance(decision, Decision):
            flight.error = f"refused: {decision.kind}"
            return
        flight.decision = decision
        flight.decode_engine = self._place[decision.decode_worker]
        if decision.prefill_worker is not None:
            flight.prefill_engine = self._place[decision.prefill_worker]
        self.router.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """The decode leg goes where it was decided."""
        assert flight.decision is not None
        self.router.observe(Prefilled(at_s=now_s, decision_id=flight.decision.decision_id))

    def first_token(self, flight: Flight, now_s: float) -> None:
        """Its prefill is over."""
        assert flight.decision is not None
        self.router.observe(FirstToken(at_s=now_s, decision_id=flight.decision.decision_id))

    def ended(self, flight: Flight, now_s: float) -> None:
        """Give back what it held, and say how it went."""
        if flight.decision is not None:
            outcome = self._outcome(flight, flight.decision, now_s)
            decision_id = flight.decision.decision_id
            self.router.observe(Finished(at_s=now_s, decision_id=decision_id, outcome=outcome))

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """What the gateway's scrape would read; time passes for it with each round of them."""
        if engine == 0:
            self.router.tick(now_s)
        sample = WorkerSample(
            at_s=now_s,
            running=snapshot.running,
            waiting=snapshot.waiting,
            kv_used_ratio=snapshot.kv_used_ratio,
        )
        self.router.observe(WorkerSampled(at_s=now_s, worker_id=self._worker_ids[engine], sample=sample))

    def _facts(self, request: TraceRequest) -> RequestFacts:
        full_blocks = request.input_tokens // request.block_tokens
        return RequestFacts(
            request_id=RequestId(f"{self._id_prefix}{request.index}"),
            endpoint=Endpoint.CHAT,
            model=self._model,
            stream=True,
            prompt_token_ids=request.input_tokens,
            block_bytes=BYTES_PER_TOKEN_ID * request.block_tokens,
            block_chains=(request.hash_ids[:full_blocks],),
            max_output_tokens=self._said_length(request),
            conversation=_conversation(request),
        )

    def _said_length(self, request: TraceRequest) -> int | None:
        if self._foretold is not None:
            return self._foretold(request)
        return request.output_tokens if self._tells_limits else None

    def _outcome(self, flight: Flight, decision: Decision, now_s: float) -> Outcome:
        kind = OutcomeKind.OK if flight.error is None else OutcomeKind.UPSTREAM_ERROR
        duration_s, ttft_s, tpot_s = now_s - flight.arrived_s, flight.ttft_s, flight.tpot_s
        output_tokens = flight.request.output_tokens
        return Outcome(
            kind=kind,
            status=200 if kind is OutcomeKind.OK else 500,
            duration_s=duration_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            input_tokens=flight.request.input_tokens,
            cached_tokens=flight.cached_tokens,
            output_tokens=output_tokens,
            attained=attained(
                decision.slo,
                kind=kind,
                duration_s=duration_s,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                output_tokens=output_tokens,
            ),
        )


def _conversation(request: TraceRequest) -> ConversationFacts | None:
    """As our client tells it; hashes need only tell the turns of one session apart."""
    if request.session is None:
        return None
    return ConversationFacts(label=f"x-session-id={request.session}", turns=(0, request.turn) if request.turn else (0,))


class _Believing(Calibration):
    """Has no mean of its own to hold against what is foretold."""

    def osl_tokens(self, model: str) -> float:  # noqa: ARG002
        """More than any request says."""
        return math.inf


def path_of(flight: Flight) -> str | None:
    """The path that the core chose; None where it was not asked or refused."""
    decision = flight.decision
    return None if decision is None else str(Path(decision.path))
