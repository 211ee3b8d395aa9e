"""One engine in virtual time: the state machine that hosts drive.

Steps are atomic. A step sees the queue as at its start, everything that it makes appears at its end, and with work
left the next step starts at that same instant. Steps that only repeat each other are planned together and jumped over;
whatever comes between them ends the stretch with the step under way. Time comes in as an argument and never goes back.
"""

from dataclasses import dataclass

from loadtest.engine.cost import transfer_seconds
from loadtest.engine.kv_cache import Hashes, KvCache
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.stretch import CostModel, Stretch
from loadtest.engine.transfer import NEVER_S, Delayed, HeldKv, Link
from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    EngineSnapshot,
    EngineSpec,
    FinishReason,
    RequestFinished,
    TokenMade,
    TransferFinished,
)


@dataclass(slots=True)
class _Counts:
    prompt_tokens: int = 0
    generated_tokens: int = 0
    remote_kv_tokens: int = 0
    finished: int = 0
    steps: int = 0
    busy_s: float = 0.0


class Engine:
    """Continuous batching with chunked prefill over a finite, prefix-cached KV memory.

    Every method that takes `now_s` first lets everything happen that was due by then; what happened is kept for the
    next `advance`. Requests that are added at one instant can share the step that starts then, because only
    `advance`, or time that goes on, starts it.

    Args:
        spec: its limits.
        costs: what its steps cost.
        tells_every_token: whether `TokenMade` comes for each token, or for each request's first only.

    Raises:
        ValueError: `now_s` lies before an earlier one.
    """

    def __init__(self, spec: EngineSpec, costs: CostModel, *, tells_every_token: bool = True) -> None:
        self.spec = spec
        self.link = Link()
        """Its network interface, for whoever fetches KV from it."""
        self._costs = costs
        self._tells_every_token = tells_every_token
        self._cache = KvCache(spec.total_blocks)
        self._scheduler = Scheduler(spec, self._cache)
        self._intake = Delayed(Phase.INTAKE)
        self._incoming = Delayed(Phase.TRANSFERRING)
        self._held = HeldKv(spec.hold_lease_s)
        self._sources: dict[str, Link] = {}
        self._live: dict[str, LiveSequence] = {}
        self._stretch: Stretch | None = None
        self._now_s = 0.0
        self._may_start = False
        self._events: list[EngineEvent] = []
        self._counts = _Counts()

    def add(self, request: EngineRequest, now_s: float, *, source: Link | None = None) -> None:
        """Queue a request; one that can never fit is finished at once as rejected.

        A decode leg's KV comes over the link of its `source`, if that is known, as well as over this engine's own.

        Raises:
            ValueError: the request contradicts itself, or its id is still in the engine.
        """
        self._run_to(now_s)
        spec = self.spec
        _check(request, spec)
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id!r} is still in the engine")
        sequence = LiveSequence.of(request)
        if _most_blocks(request, spec) > spec.total_blocks:
            self._tell_finished(sequence, FinishReason.REJECTED)
            return
        self._live[request.request_id] = sequence
        if source is not None:
            self._sources[request.request_id] = source
        intake_s = spec.intake_s + spec.intake_token_s * request.prompt_tokens
        if intake_s:
            sequence.phase = Phase.INTAKE
            self._intake.add(sequence, now_s + intake_s)
        else:
            self._enqueue(sequence)

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Take a request out, whatever it is doing, and free its blocks; False where the engine has none such.

        A step under way takes no less time for it.
        """
        self._run_to(now_s)
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._cut()
        self._scheduler.remove(sequence)
        self._held.drop(request_id)
        self._forget(sequence)
        self._intake.drop_left()
        self._incoming.drop_left()
        return True

    def release_held(self, request_id: str, now_s: float) -> bool:
        """Free the blocks that a finished prefill leg holds; False where it holds none (any more)."""
        self._run_to(now_s)
        sequence = self._held.drop(request_id)
        if sequence is None:
            return False
        self._forget(sequence)
        return True

    def next_event_at_s(self) -> float | None:
        """When `advance` next has something to do; None where it has nothing until a request is added.

        That is the end of the step, transfer or lease that ends first. It is the present where a step can start or
        something has happened that no `advance` has told.
        """
        if self._events or (self._may_start and self._stretch is None):
            return self._now_s
        end_s = self._next_end_s()
        return None if end_s == NEVER_S else end_s

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Let time go on; everything that happened up to and including `now_s`, in order of time."""
        self._run_to(now_s)
        self._start()
        events, self._events = self._events, []
        return events

    def known_blocks(self, hashes: Hashes, piece_blocks: int) -> int:
        """Leading blocks of a prompt that its cache holds, as of the last planned step."""
        return self._cache.match(hashes, piece_blocks, len(hashes) * piece_blocks).blocks

    def snapshot(self, now_s: float | None = None) -> EngineSnapshot:
        """Gauges and counters, as of the last `now_s` where none is given."""
        if now_s is not None:
            self._run_to(now_s)
        self._settle_ended_steps()
        scheduler, counts, cache = self._scheduler, self._counts, self._cache
        return EngineSnapshot(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.ready) + len(self._incoming) + len(self._intake),
            kv_used_ratio=cache.used_blocks / cache.total_blocks,
            prefix_queried_tokens=scheduler.prefix_queried_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            remote_kv_tokens=counts.remote_kv_tokens,
            preemptions=scheduler.preemptions,
            prompt_tokens=counts.prompt_tokens,
            generated_tokens=counts.generated_tokens,
            finished=counts.finished,
            steps=counts.steps,
            busy_s=counts.busy_s,
        )

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time goes back from {self._now_s} to {now_s}")
        while True:
            if self._now_s < now_s:
                self._start()
            end_s = self._next_end_s()
            if end_s > now_s:
                break
            self._now_s = end_s
            self._end_what_is_due()
        self._now_s = now_s

    def _next_end_s(self) -> float:
        end_s = min(self._intake.next_end_s, self._incoming.next_end_s, self._held.next_end_s)
        stretch = self._stretch
        if stretch is not None:
            step_s = stretch.step_end_s(stretch.settled + 1) if self._tells_every_token else stretch.end_s
            if step_s < end_s:
                return step_s
        return end_s

    def _end_what_is_due(self) -> None:
        stretch, now_s = self._stretch, self._now_s
        if stretch is not None and (self._tells_every_token or stretch.end_s <= now_s):
            self._settle_ended_steps()
        if self._intake.next_end_s <= now_s:
            for sequence in self._intake.pop_due(now_s):
                self._enqueue(sequence)
        if self._incoming.next_end_s <= now_s:
            for sequence in self._incoming.pop_due(now_s):
                self._receive(sequence)
        if self._held.next_end_s <= now_s:
            for sequence in self._held.pop_due(now_s):
                self._forget(sequence)

    def _start(self) -> None:
        if self._stretch is not None or not self._may_start:
            return
        self._may_start = False
        plan = self._scheduler.plan()
        while plan.is_empty and plan.preempted:
            plan = self._scheduler.plan()
        for sequence in plan.reserved:
            self._incoming.add(sequence, self._transfer_end_s(sequence))
        if not plan.is_empty:
            self._stretch = Stretch(plan, self._costs, self._now_s)

    def _transfer_end_s(self, sequence: LiveSequence) -> float:
        spec = self.spec
        tokens = sequence.remote_tokens if spec.transfers_whole_prompt else sequence.missing_remote_tokens
        source = self._sources.pop(sequence.request.request_id, None)
        if not spec.transfers_share_link:
            return self._now_s + transfer_seconds(tokens, spec)
        links = [self.link] if source is None else [self.link, source]
        start_s = max(self._now_s, *(link.free_at_s for link in links))
        end_s = start_s + transfer_seconds(tokens, spec)
        for link in links:
            # The latency is set-up, during which the link serves others.
            link.free_at_s = end_s - spec.transfer_latency_s
        return end_s

    def _cut(self) -> None:
        """Something changed: no step begins any more before the next plan."""
        self._settle_ended_steps()
        stretch = self._stretch
        if stretch is None:
            return
        # At the very end of a step the next one has not begun yet.
        settled = stretch.settled
        begun = settled == 0 or stretch.step_end_s(settled) < self._now_s
        if settled + begun < stretch.steps:
            stretch.cut(settled + begun)
        if not begun:
            self._end_stretch(stretch)

    def _settle_ended_steps(self) -> None:
        """Account for the steps of a stretch that have ended by now."""
        stretch = self._stretch
        if stretch is None:
            return
        ended = stretch.ended_steps(self._now_s)
        batch = self._scheduler.decoding
        while stretch.settled < ended:
            steps = 1 if self._tells_every_token else ended - stretch.settled
            batch.begin(steps)
            batch.advance(steps)
            stretch.settled += steps
            self._counts.steps += steps
            self._counts.generated_tokens += steps * len(batch)
            self._tell_tokens(stretch)
        if ended == stretch.steps:
            self._end_stretch(stretch)
        else:
            batch.begin(1)

    def _tell_tokens(self, stretch: Stretch) -> None:
        batch = self._scheduler.decoding
        for sequence in stretch.plan.beginners:
            self._counts.prompt_tokens += sequence.request.prompt_tokens
        if self._tells_every_token:
            at_s = stretch.step_end_s(stretch.settled)
            for sequence in batch:
                index = batch.generated_tokens(sequence) - 1
                self._events.append(TokenMade(at_s=at_s, request_id=sequence.request.request_id, index=index))
            return
        for sequence in stretch.plan.beginners:
            if sequence.phase is Phase.DECODING:
                self._tell_first_token(sequence)

    def _end_stretch(self, stretch: Stretch) -> None:
        self._stretch = None
        self._may_start = True
        self._counts.busy_s += stretch.end_s - stretch.start_s
        for sequence in self._scheduler.decoding.pop_done():
            self._finish(sequence)
        for sequence, new in stretch.plan.chunks:
            if sequence.phase is Phase.PREFILLING:
                sequence.computed_tokens += new
                if sequence.computed_tokens == sequence.known_tokens:
                    self._end_prefill(sequence)

    def _end_prefill(self, sequence: LiveSequence) -> None:
        """The last chunk's step makes a token too."""
        index = sequence.generated_tokens
        if not index:
            self._counts.prompt_tokens += sequence.request.prompt_tokens
        if not index or self._tells_every_token:
            self._events.append(TokenMade(at_s=self._now_s, request_id=sequence.request.request_id, index=index))
        sequence.generated_tokens += 1
        sequence.known_tokens += 1
        self._counts.generated_tokens += 1
        if sequence.left_tokens:
            self._scheduler.join_batch(sequence)
        else:
            self._scheduler.remove(sequence)
            self._finish(sequence)

    def _finish(self, sequence: LiveSequence) -> None:
        """All its tokens are made; the batch has let it go."""
        self._scheduler.running.pop(sequence, None)
        self._counts.finished += 1
        self._tell_finished(sequence, FinishReason.LENGTH)
        if sequence.request.holds_kv:
            sequence.phase = Phase.HELD
            self._held.hold(sequence, self._now_s)
        else:
            self._forget(sequence)

    def _enqueue(self, sequence: LiveSequence) -> None:
        self._cut()
        sequence.phase = Phase.WAITING
        self._scheduler.waiting.append(sequence)
        self._may_start = True

    def _receive(self, sequence: LiveSequence) -> None:
        self._cut()
        self._counts.remote_kv_tokens += sequence.missing_remote_tokens
        self._scheduler.note_arrived(sequence)
        self._may_start = True
        self._events.append(TransferFinished(at_s=self._now_s, request_id=sequence.request.request_id))

    def _forget(self, sequence: LiveSequence) -> None:
        """Its blocks are free; whoever waits for some may have them."""
        self._cut()
        self._scheduler.release(sequence)
        sequence.phase = Phase.GONE
        del self._live[sequence.request.request_id]
        self._sources.pop(sequence.request.request_id, None)
        self._may_start = True

    def _tell_first_token(self, sequence: LiveSequence) -> None:
        self._events.append(TokenMade(at_s=self._now_s, request_id=sequence.request.request_id, index=0))

    def _tell_finished(self, sequence: LiveSequence, reason: FinishReason) -> None:
        self._events.append(
            RequestFinished(
                at_s=self._now_s,
                request_id=sequence.request.request_id,
                reason=reason,
                cached_tokens=sequence.cached_tokens or 0,
                preemptions=sequence.preemptions,
            )
        )


def _most_blocks(request: EngineRequest, spec: EngineSpec) -> int:
    """Blocks at the end: the last token's KV is never written."""
    return -(-(request.prompt_tokens + request.output_tokens - 1) // spec.block_tokens)


def _check(request: EngineRequest, spec: EngineSpec) -> None:
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise ValueError("a request has at least one prompt token and one output token")
    if not 0 <= request.remote_tokens <= request.prompt_tokens:
        raise ValueError("remote tokens are prompt tokens")
    if len(request.block_hashes) > -(-(request.prompt_tokens // spec.block_tokens) // request.hash_blocks):
        raise ValueError("only pieces with a full block of the prompt have a hash")
