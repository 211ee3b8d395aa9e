"""One engine in virtual time: the state machine that hosts drive.

Steps are atomic. A step sees the queue as at its start, everything that it makes appears at its end, and with work
left the next step starts at that same instant. Steps that only repeat each other are planned together and jumped over;
whatever comes between them ends the stretch with the step under way. Time comes in as an argument and never goes back.
"""

from loadtest.engine.kv_cache import Hashes, KvCache
from loadtest.engine.power import PowerModel, PrefillMeter, Usage
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.stepping import NEVER_S, Change, Stepper
from loadtest.engine.stretch import CostModel
from loadtest.engine.transfer import Delayed, HeldKv, Link, transfer_seconds
from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    EngineSnapshot,
    EngineSpec,
    FinishReason,
    RequestFinished,
    TransferFinished,
)


class Engine:
    """Continuous batching with chunked prefill over a finite, prefix-cached KV memory.

    Every method that takes `now_s` first lets everything happen that was due by then; what happened is kept for the
    next `advance`. Requests that are added at one instant can share the step that starts then, because only
    `advance`, or time that goes on, starts it.

    Args:
        spec: its limits.
        costs: what its steps cost.
        tells_every_token: whether `TokenMade` comes for each token, or for each request's first only.
        power: what its GPUs draw; None accounts for no energy. Times do not depend on it.

    Raises:
        ValueError: `now_s` lies before an earlier one.
    """

    def __init__(
        self, spec: EngineSpec, costs: CostModel, *, tells_every_token: bool = True, power: PowerModel | None = None
    ) -> None:
        self.spec = spec
        self.power = power
        self.link = Link()
        """Its network interface, for whoever fetches KV from it."""
        self._cache = KvCache(spec.total_blocks)
        self._scheduler = Scheduler(spec, self._cache)
        self._stepper = Stepper(
            self._scheduler,
            costs,
            tells_every_token=tells_every_token,
            plans_ahead=spec.plans_ahead,
            meter=None if power is None else PrefillMeter(costs),
        )
        self._intake = Delayed(Phase.INTAKE)
        self._incoming = Delayed(Phase.TRANSFERRING)
        self._held = HeldKv(spec.hold_lease_s)
        self._delays_end_s = NEVER_S
        """When the first of these three has something to end."""
        self._sources: dict[str, Link] = {}
        self._live: dict[str, LiveSequence] = {}
        self._now_s = 0.0
        self._events = self._stepper.events
        self._remote_kv_tokens = 0
        self._finished = 0
        self._idle_snapshot: EngineSnapshot | None = None
        """Of an engine without requests; nothing changes until it gets one."""

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
        sequence = LiveSequence.of(request, spec.block_tokens)
        if _most_blocks(request, spec) > spec.total_blocks:
            self._tell_finished(sequence, FinishReason.REJECTED)
            return
        self._live[request.request_id] = sequence
        self._idle_snapshot = None
        if source is not None:
            self._sources[request.request_id] = source
        intake_s = spec.intake_s + spec.intake_token_s * request.prompt_tokens
        if intake_s:
            self._intake.add(sequence, now_s + intake_s)
            self._look_at_delays()
        else:
            self._change(self._enqueue, sequence)

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Take a request out, whatever it is doing, and free its blocks; False where the engine has none such.

        A step under way takes no less time for it.
        """
        self._run_to(now_s)
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._stepper.cut(now_s)
        self._take_done()
        self._scheduler.remove(sequence)
        self._held.drop(request_id)
        self._forget(sequence)
        self._intake.drop_left()
        self._incoming.drop_left()
        self._look_at_delays()
        return True

    def release_held(self, request_id: str, now_s: float) -> bool:
        """Free the blocks that a finished prefill leg holds; False where it holds none (any more)."""
        self._run_to(now_s)
        sequence = self._held.drop(request_id)
        if sequence is None:
            return False
        self._look_at_delays()
        self._forget(sequence)
        return True

    def next_event_at_s(self) -> float | None:
        """When `advance` next has something to do; None where it has nothing until a request is added.

        That is the end of the step, transfer or lease that ends first. It is the present where a step can start or
        something has happened that no `advance` has told.
        """
        due_s = self.due_s()
        return None if due_s == NEVER_S else due_s

    def due_s(self) -> float:
        """The same as a number: `NEVER_S` instead of None."""
        stepper = self._stepper
        if self._events or stepper.may_start:
            return self._now_s
        end_s = stepper.next_end_s
        # Asked for more often than anything else: `min` takes longer.
        return end_s if end_s < self._delays_end_s else self._delays_end_s  # noqa: FURB136

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Let time go on; everything that happened up to and including `now_s`, in order of time."""
        self._run_to(now_s)
        if self._stepper.may_start:
            self._start()
        events, self._stepper.events = self._events, []
        self._events = self._stepper.events
        return events

    def known_blocks(self, hashes: Hashes, piece_blocks: int) -> int:
        """Leading blocks of a prompt that its cache holds, as of the last planned step."""
        return self._cache.match(hashes, piece_blocks, len(hashes) * piece_blocks).blocks

    def snapshot(self, now_s: float | None = None) -> EngineSnapshot:
        """Gauges and counters, as of the last `now_s` where none is given."""
        if now_s is not None:
            self._run_to(now_s)
        stepper = self._stepper
        if self._live or stepper.may_start or stepper.next_end_s != NEVER_S:
            self._settle()
            return self._take_snapshot()
        if self._idle_snapshot is None:
            self._idle_snapshot = self._take_snapshot()
        return self._idle_snapshot

    def usage(self, now_s: float) -> Usage | None:
        """How its time since 0 was spent, the step under way included; None without a power model."""
        self._run_to(now_s)
        if self.power is None:
            return None
        busy_s, prefill_s = self._stepper.used_s(now_s)
        return Usage(idle_s=max(0.0, now_s - busy_s), decode_s=busy_s - prefill_s, prefill_s=prefill_s)

    def energy_j(self, now_s: float) -> float | None:
        """Joules since 0, busy and idle, as modelled; None without a power model."""
        usage = self.usage(now_s)
        return None if self.power is None or usage is None else self.power.energy_j(usage)

    def _take_snapshot(self) -> EngineSnapshot:
        scheduler, stepper, cache = self._scheduler, self._stepper, self._cache
        return EngineSnapshot(
            running=len(scheduler.running),
            waiting=len(self._live) - scheduler.computing - len(self._held),
            kv_used_ratio=cache.used_blocks / cache.total_blocks,
            prefix_queried_tokens=scheduler.prefix_queried_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            remote_kv_tokens=self._remote_kv_tokens,
            preemptions=scheduler.preemptions,
            prompt_tokens=stepper.prompt_tokens,
            generated_tokens=stepper.generated_tokens,
            finished=self._finished,
            steps=stepper.steps,
            busy_s=stepper.busy_s,
        )

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time goes back from {self._now_s} to {now_s}")
        stepper = self._stepper
        while True:
            if stepper.may_start and self._now_s < now_s:
                self._start()
            step_s, delay_s = stepper.next_end_s, self._delays_end_s
            end_s = step_s if step_s < delay_s else delay_s  # noqa: FURB136
            if end_s > now_s:
                break
            self._now_s = end_s
            if step_s <= end_s:
                self._settle()
            if self._delays_end_s <= end_s:
                self._end_delays()
        self._now_s = now_s

    def _look_at_delays(self) -> None:
        self._delays_end_s = min(self._intake.next_end_s, self._incoming.next_end_s, self._held.next_end_s)

    def _end_delays(self) -> None:
        now_s = self._now_s
        if self._intake.next_end_s <= now_s:
            for sequence in self._intake.pop_due(now_s):
                self._change(self._enqueue, sequence)
        if self._incoming.next_end_s <= now_s:
            for sequence in self._incoming.pop_due(now_s):
                self._receive(sequence)
        if self._held.next_end_s <= now_s:
            for sequence in self._held.pop_due(now_s):
                self._forget(sequence)
        self._look_at_delays()

    def _start(self) -> None:
        reserved = self._stepper.start(self._now_s)
        if reserved:
            for sequence in reserved:
                self._incoming.add(sequence, self._transfer_end_s(sequence))
            self._look_at_delays()

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

    def _settle(self) -> None:
        self._stepper.settle(self._now_s)
        if self._stepper.done:
            self._take_done()

    def _change(self, change: Change, sequence: LiveSequence) -> None:
        self._stepper.change(change, sequence, self._now_s)
        if self._stepper.done:
            self._take_done()

    def _take_done(self) -> None:
        """Let go of the sequences that have made their last token."""
        done = self._stepper.done
        while done:
            self._finish(done.pop(0))

    def _finish(self, sequence: LiveSequence) -> None:
        self._finished += 1
        self._tell_finished(sequence, FinishReason.LENGTH)
        if sequence.request.holds_kv:
            sequence.phase = Phase.HELD
            self._held.hold(sequence, self._now_s)
            self._look_at_delays()
            self._change(self._scheduler.leave_slot, sequence)
        else:
            self._forget(sequence)

    def _enqueue(self, sequence: LiveSequence) -> None:
        if sequence.phase is Phase.INTAKE:
            sequence.phase = Phase.WAITING
            self._scheduler.waiting.append(sequence)

    def _receive(self, sequence: LiveSequence) -> None:
        self._remote_kv_tokens += sequence.missing_remote_tokens
        sequence.phase = Phase.ARRIVED
        self._events.append(TransferFinished(at_s=self._now_s, request_id=sequence.request.request_id))
        self._change(self._scheduler.note_arrived, sequence)

    def _forget(self, sequence: LiveSequence) -> None:
        """It leaves; its slot and its blocks are for others."""
        sequence.phase = Phase.GONE
        del self._live[sequence.request.request_id]
        self._sources.pop(sequence.request.request_id, None)
        self._change(self._scheduler.let_go, sequence)

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
