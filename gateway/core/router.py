"""The decision core: a state machine `(call, now) -> answer` that owns all mutable state.

The rule of this module: no clock, no chance and no I/O of its own. The same calls with the same times give
the same answers, byte for byte, in the gateway and in the simulator.
"""

import math
from copy import copy
from random import Random

from gateway.core.calibration import Calibration
from gateway.core.choosing import Ask, MustWait, Surroundings
from gateway.core.conversation.keeper import ConversationKeeper
from gateway.core.conversation.rules import Mode
from gateway.core.events import (
    ConversationClosed,
    ConversationTold,
    Dispatched,
    Event,
    Finished,
    FirstToken,
    KvPinned,
    LoadsElsewhere,
    Prefilled,
    PrefillLost,
    ResponseTold,
    WorkerDown,
    WorkerDraining,
    WorkerProbed,
    WorkerSampled,
    WorkerUp,
)
from gateway.core.features import estimate
from gateway.core.fleet_state import FleetState
from gateway.core.forecast import Forecast
from gateway.core.hashing import hash64
from gateway.core.health import HealthTable
from gateway.core.ledger import Ledger, Reservation, Stage
from gateway.core.policy import Policy
from gateway.core.prefix import PrefixIndex
from gateway.core.selector import Selector
from gateway.core.slo import SloLedger, target_for
from gateway.core.types import (
    Decision,
    DecisionId,
    OutcomeKind,
    Refusal,
    RequestFacts,
    WorkerId,
    WorkerSample,
    WorkerSpec,
)
from gateway.core.waiting import Ticket, Wait, WaitingRoom

NO_EXCLUSIONS: frozenset[WorkerId] = frozenset()
MAX_BOOKED_ANSWERS = 256
"""A request may ask for more answers; no engine runs more sequences at once, and most refuse such a request."""
WAITS_BEHIND = "other new conversations came before it"
MICROSECONDS = 1e6
TEXT_TOKENS_PER_INDEX_BLOCK = 64
"""What a 256-byte block of text is worth when a worker's index is bounded by its KV cache."""


class Router:
    """Decides for each request its path and its workers, and keeps the books.

    Args:
        policy: all tables and tunables.
        rng: the only source of chance.
        instance: a name of this router that makes its decision ids unique among replicas.
        calibration: what is known of prompts and answers already.
    """

    def __init__(self, policy: Policy, *, rng: Random, instance: str, calibration: Calibration | None = None) -> None:
        self.policy = policy
        self.ledger = Ledger()
        self.fleet = FleetState(self.ledger, policy.sample_max_age_s)
        self.health = HealthTable(policy.health)
        self.prefix = PrefixIndex()
        self.calibration = calibration or Calibration()
        self.slo = SloLedger(objective=policy.slo_objective)
        self.forecast = self._make_forecast(policy)
        self.conversations = ConversationKeeper(policy.conversation, self.fleet)
        self.waiting = WaitingRoom()
        self._selector = self._make_selector()
        self._rng = rng
        self._instance = instance
        self._chance = hash64(instance)
        self._decisions = 0

    def submit(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
    ) -> Decision | Refusal | Wait:
        """Route one request and reserve what it needs, until `abort` or a `Finished` event.

        One that has to wait is called by `release`, or leaves by `give_up`. One that was routed before never waits.

        Args:
            facts: the request.
            now_s: the host's time.
            exclude: workers that failed this request already.
            attempt: 1, or the number of this try.
        """
        ask = self._ask(facts, now_s, exclude=exclude, attempt=attempt)
        routed = (
            MustWait(words=WAITS_BEHIND)
            if self._waits_behind(ask)
            else self._selector.decide(ask, self._id(), self._rng)
        )
        if isinstance(routed, MustWait):
            return Wait(request_id=facts.request_id, ticket=self.waiting.enter(facts, now_s), words=routed.words)
        if isinstance(routed, Decision):
            self._reserve(routed, ask)
        return routed

    def release(self, now_s: float) -> list[tuple[Ticket, Decision | Refusal]]:
        """Route those that waited and need not any longer, in their order; to be asked after whatever makes room."""
        released: list[tuple[Ticket, Decision | Refusal]] = []
        for model in self.waiting.models():
            while (first := self.waiting.first(model)) is not None:
                ask = self._ask(first.facts, now_s, waited_s=now_s - first.since_s)
                routed = self._selector.decide(ask, self._id(), self._rng)
                if isinstance(routed, MustWait):
                    break
                self.waiting.leave(model)
                if isinstance(routed, Decision):
                    self._reserve(routed, ask)
                released.append((first.ticket, routed))
        return released

    def give_up(self, ticket: Ticket) -> None:
        """Whoever waits with this ticket has left."""
        self.waiting.give_up(ticket)

    def preview(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
    ) -> Decision | Refusal:
        """What `submit` would answer, were there room, without taking anything: not even from the generator."""
        ask = self._ask(facts, now_s, exclude=exclude, attempt=attempt, waited_s=math.inf)
        routed = self._selector.decide(ask, self._id(), copy(self._rng))
        assert not isinstance(routed, MustWait)
        return routed

    def would_wait(self, facts: RequestFacts, now_s: float) -> bool:
        """Whether `submit` would let it wait, asked without taking anything."""
        ask = self._ask(facts, now_s)
        return self._waits_behind(ask) or isinstance(self._selector.decide(ask, self._id(), copy(self._rng)), MustWait)

    def _ask(
        self,
        facts: RequestFacts,
        now_s: float,
        *,
        exclude: frozenset[WorkerId] = NO_EXCLUSIONS,
        attempt: int = 1,
        waited_s: float = 0.0,
    ) -> Ask:
        policy, said = self.policy, facts.conversation
        return Ask(
            facts,
            estimate(facts, self.calibration, policy.output_length),
            now_s,
            exclude,
            attempt,
            target_for(facts, policy.slo),
            None if said is None else self.conversations.turn_of(facts),
            waited_s if attempt == 1 else math.inf,
            None if said is None else self.conversations.kept_on(facts),
            self._chance + self._decisions ^ int(now_s * MICROSECONDS),
        )

    def _id(self) -> DecisionId:
        return DecisionId(f"{self._instance}-{self._decisions + 1}")

    def _waits_behind(self, ask: Ask) -> bool:
        """Whether a new conversation finds others before it."""
        turn = ask.turn
        return (
            turn is not None
            and turn.mode is Mode.CONSERVE
            and turn.is_new
            and ask.attempt == 1
            and self.waiting.first(ask.facts.model) is not None
        )

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on; everything else that is known stays."""
        if policy.costs != self.policy.costs:
            # Promises by other prices are forgotten: what was made of them cannot be compared.
            self.forecast = self._make_forecast(policy)
        self.policy = policy
        self.conversations.adopt(policy.conversation)
        self.health.policy = policy.health
        self.slo.objective = policy.slo_objective
        self.fleet.use_samples_for(policy.sample_max_age_s)
        self._selector = self._make_selector()
        for state in self.fleet:
            self._bound_index(state.spec.worker_id)

    def abort(self, decision_id: DecisionId, now_s: float, *, blame: WorkerId | None = None) -> None:
        """End a decision of which the client has seen nothing; the request may be submitted again.

        Raises:
            LedgerError: the decision holds no reservation.
        """
        reservation = self._release(decision_id, now_s)
        self.conversations.turn_ended(reservation, now_s, None)
        if blame is not None:
            self.health.failed(blame, now_s)

    def observe(self, event: Event) -> None:  # noqa: C901 (one flat match over the closed set of events)
        """Take note of a fact.

        Raises:
            LedgerError: the event's decision holds no reservation, or would move backwards.
        """
        match event:
            # Those of every request come first: a match is tried from the top.
            case Dispatched(decision_id=decision_id):
                self._dispatched(decision_id)
            case Prefilled():
                self._prefilled(event)
            case FirstToken():
                self._first_token(event)
            case Finished():
                self._finished(event)
            case WorkerSampled(worker_id=worker_id, sample=sample):
                self._worker_sampled(worker_id, sample)
            case PrefillLost():
                self._prefill_lost(event)
            case WorkerProbed(worker_id=worker_id, healthy=healthy, timed_out=timed_out):
                self.health.probed(worker_id, healthy, timed_out=timed_out)
            case WorkerUp(spec=spec):
                self._worker_up(spec)
            case WorkerDown(worker_id=worker_id):
                self._worker_down(worker_id)
            case WorkerDraining(worker_id=worker_id):
                self.health.drain(worker_id)
            case ConversationTold() | ConversationClosed() | ResponseTold() | KvPinned():
                self.conversations.heard(event)
            case LoadsElsewhere():
                self.fleet.heard(event)

    def tick(self, now_s: float) -> None:
        """Let time pass: ejections end, and conversations that were not gone on with are forgotten."""
        self.health.tick(now_s)
        self.conversations.tick(now_s)

    def _make_selector(self) -> Selector:
        around = Surroundings(self.policy, self.fleet, self.health, self.prefix, self.forecast)
        return Selector(around, self.conversations.book)

    def _make_forecast(self, policy: Policy) -> Forecast | None:
        return None if policy.costs is None else Forecast(policy.costs, self.calibration, self.fleet.elsewhere)

    def _worker_up(self, spec: WorkerSpec) -> None:
        self.fleet.put(spec)
        self.health.add(spec.worker_id, spec.role)
        self._bound_index(spec.worker_id)

    def _worker_down(self, worker_id: WorkerId) -> None:
        self.fleet.remove(worker_id)
        self.health.remove(worker_id)
        self.prefix.remove_worker(worker_id)
        self.conversations.lose(worker_id)
        if self.forecast is not None:
            self.forecast.forget(worker_id)

    def _worker_sampled(self, worker_id: WorkerId, sample: WorkerSample) -> None:
        if self.fleet.sampled(worker_id, sample):
            self._bound_index(worker_id)

    def _bound_index(self, worker_id: WorkerId) -> None:
        # A worker cannot hold more than its KV cache, whatever was sent to it.
        bound, state = self.policy.index_blocks_per_worker, self.fleet[worker_id]
        capacity_tokens = state.kv_capacity_tokens
        if not state.spec.caches_prefixes:
            bound = 0
        elif capacity_tokens is not None:
            bound = max(1, min(bound, capacity_tokens // TEXT_TOKENS_PER_INDEX_BLOCK))
        self.prefix.add_worker(worker_id, bound)

    def _reserve(self, decision: Decision, ask: Ask) -> None:
        self._decisions += 1
        facts, now_s = ask.facts, ask.now_s
        features, prefiller = decision.features, decision.prefill_worker
        self.health.sent(decision.decode_worker, decision.decision_id)
        if prefiller is not None:
            self.health.sent(prefiller, decision.decision_id)
        answers = min(facts.choices * facts.prompts, MAX_BOOKED_ANSWERS)
        kv_tokens = features.isl_tokens + math.ceil(features.osl_tokens) * answers
        self.ledger.reserve(
            Reservation(
                decision,
                facts,
                now_s,
                kv_tokens,
                prefiller or decision.decode_worker,
                features.prefill_isl_tokens if prefiller else features.decode_isl_tokens,
                None if facts.conversation is None else self.conversations.turn_begins(ask, decision),
            )
        )
        if self.forecast is not None:
            self.forecast.sent(decision, now_s)

    def _dispatched(self, decision_id: DecisionId) -> None:
        reservation = self.ledger.advance(decision_id, Stage.DISPATCHED)
        decision = reservation.decision
        self._store(decision.prefill_worker or decision.decode_worker, reservation.facts)

    def _prefilled(self, event: Prefilled) -> None:
        reservation = self.ledger.advance(event.decision_id, Stage.PREFILLED)
        prefiller = reservation.decision.prefill_worker
        if prefiller is not None:
            self.health.ended(prefiller, event.decision_id)
            self.health.heard(prefiller)
        if self.forecast is not None:
            self.forecast.prefilled(reservation.decision, event.at_s)
        if reservation.conversation is not None and prefiller is not None:
            reservation.conversation.transfers += 1
        # The transfer leaves the prompt's blocks on the decode worker too.
        self._store(reservation.decision.decode_worker, reservation.facts)

    def _first_token(self, event: FirstToken) -> None:
        reservation = self.ledger.advance(event.decision_id, Stage.STREAMING)
        self.health.heard(reservation.decision.decode_worker)
        if self.forecast is not None:
            # On the local path this is the end of the prefill; on the remote one that was told before.
            self.forecast.prefilled(reservation.decision, event.at_s)

    def _prefill_lost(self, event: PrefillLost) -> None:
        # Its prefill worker is forgotten with the leg.
        prefiller = self._prefiller(event.decision_id)
        if self.forecast is not None and (lost := self.ledger.get(event.decision_id)) is not None:
            self.forecast.ended(lost.decision, event.at_s, tpot_s=None)
        reservation = self.ledger.prefill_lost(event.decision_id)
        if prefiller is not None:
            self.health.ended(prefiller, event.decision_id)
        self._store(reservation.decision.decode_worker, reservation.facts)
        if event.blame is not None:
            self.health.failed(event.blame, event.at_s)

    def _store(self, worker_id: WorkerId, facts: RequestFacts) -> None:
        for chain in facts.block_chains:
            self.prefix.store(worker_id, chain)

    def _prefiller(self, decision_id: DecisionId) -> WorkerId | None:
        reservation = self.ledger.get(decision_id)
        return None if reservation is None else reservation.decision.prefill_worker

    def _release(self, decision_id: DecisionId, now_s: float, *, tpot_s: float | None = None) -> Reservation:
        reservation = self.ledger.release(decision_id)
        if self.forecast is not None:
            self.forecast.ended(reservation.decision, now_s, tpot_s=tpot_s)
        decision = reservation.decision
        self.health.ended(decision.decode_worker, decision_id)
        if decision.prefill_worker is not None:
            self.health.ended(decision.prefill_worker, decision_id)
        return reservation

    def _finished(self, event: Finished) -> None:
        outcome = event.outcome
        tpot_s = outcome.tpot_s if outcome.kind is OutcomeKind.OK else None
        reservation = self._release(event.decision_id, event.at_s, tpot_s=tpot_s)
        self.conversations.turn_ended(reservation, event.at_s, outcome)
        decision = reservation.decision
        if event.blame is not None:
            self.health.failed(event.blame, event.at_s)
        elif outcome.kind is OutcomeKind.OK:
            self.health.succeeded(decision.decode_worker)
            if decision.prefill_worker is not None:
                self.health.succeeded(decision.prefill_worker)
        if outcome.kind is OutcomeKind.OK:
            self._calibrate(reservation.facts, outcome.input_tokens, outcome.output_tokens)
        if outcome.attained is not None:
            self.slo.count(decision.slo.name, decision.path, outcome.attained, event.at_s)

    def _calibrate(self, facts: RequestFacts, input_tokens: int | None, output_tokens: int | None) -> None:
        if input_tokens is not None and facts.prompt_token_ids is None and not facts.media_parts:
            self.calibration.saw_prompt(facts.model, facts.prompt_bytes, input_tokens)
        if output_tokens is not None and facts.endpoint.generates and facts.choices == facts.prompts == 1:
            self.calibration.saw_output(facts.model, output_tokens, facts.max_output_tokens)
