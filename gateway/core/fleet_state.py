"""The workers as the core knows them: specs, samples, and the view of them that one decision takes.

The rule of this module: a view blends the gateway's own ledger with the last fresh sample and never trusts either
alone. A sample is as old as its scrape, so what the ledger gained or lost since then is added to it (field report
54); a stale sample is ignored (52); a missing one is not zero (51). Where the other replicas tell what they have in
flight, that and the own ledger stand instead of the sample's count, which has both in it and is older.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gateway.core.events import LoadsElsewhere
from gateway.core.ledger import Ledger, Tally
from gateway.core.loads_elsewhere import OtherLoads
from gateway.core.types import WorkerId, WorkerSample, WorkerSpec, WorkerView


@dataclass(slots=True)
class WorkerState:
    """One worker: its spec, its last sample and the ledger's sums when that came."""

    spec: WorkerSpec
    sample: WorkerSample | None = None
    tally_at_sample: Tally = field(default_factory=Tally)
    view: WorkerView | None = None
    """As last built, with no hit; None where something that it was built from has changed."""
    rests_on: WorkerSample | None = None
    """The sample that `view` was built from."""
    view_end_s: float = math.inf
    """When that sample is too old."""
    kv_block_tokens: int | None = None
    """Tokens per KV block, as configured or as scraped."""
    kv_capacity_tokens: int | None = None
    """KV cache size in tokens; None until block size and count are known."""

    def measure(self) -> None:
        """Find out anew how large its KV cache is."""
        spec, sample = self.spec, self.sample
        size = self.kv_block_tokens = spec.kv_block_tokens or (sample.kv_block_tokens if sample else None)
        blocks = spec.kv_total_blocks or (sample.kv_total_blocks if sample else None)
        self.kv_capacity_tokens = None if blocks is None or size is None else blocks * size

    def fresh_sample(self, now_s: float, max_age_s: float) -> WorkerSample | None:
        """The last sample, if it is young enough to be used."""
        sample = self.sample
        return sample if sample is not None and now_s - sample.at_s <= max_age_s else None


class FleetState:
    """All workers by id."""

    def __init__(self, ledger: Ledger, sample_max_age_s: float) -> None:
        self._ledger = ledger
        self.sample_max_age_s = sample_max_age_s
        self._states: dict[WorkerId, WorkerState] = {}
        self._models: Counter[str] = Counter()
        self.elsewhere = OtherLoads()
        self._hears = False
        """The views rest on what the other replicas tell."""
        self.version = 0
        """Grows when a worker joins, changes or leaves."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self._states.values())

    def __contains__(self, worker_id: WorkerId) -> bool:
        return worker_id in self._states

    def __getitem__(self, worker_id: WorkerId) -> WorkerState:
        return self._states[worker_id]

    def put(self, spec: WorkerSpec) -> WorkerState:
        """Add a worker or change a known one's spec; its last sample stays."""
        state = self._states.get(spec.worker_id)
        if state is None:
            state = self._states[spec.worker_id] = WorkerState(spec)
        else:
            self._models.subtract(set(state.spec.models))
        self._models.update(set(spec.models))
        state.spec = spec
        state.measure()
        state.view = None
        self.version += 1
        return state

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker."""
        state = self._states.pop(worker_id, None)
        if state is not None:
            self._models.subtract(set(state.spec.models))
            self._models = +self._models
        self.elsewhere.forget(worker_id)
        self.version += 1

    def sampled(self, worker_id: WorkerId, sample: WorkerSample) -> bool:
        """Keep a worker's newest sample; True where its KV cache turns out to be of another size."""
        state = self._states.get(worker_id)
        if state is None:
            return False
        tally, before = self._ledger.tally(worker_id), state.sample
        state.sample = sample
        same = before is not None and sample.says_the_same_as(before)
        if same and before is state.rests_on and tally == state.tally_at_sample:
            # An idle worker says the same every time.
            state.rests_on = sample
            state.view_end_s = sample.at_s + self.sample_max_age_s
            return False
        state.view = None
        state.tally_at_sample = tally.copy()
        if same:
            return False
        capacity_tokens = state.kv_capacity_tokens
        state.measure()
        return state.kv_capacity_tokens != capacity_tokens

    def use_samples_for(self, max_age_s: float) -> None:
        """Change the age up to which a sample is used."""
        self.sample_max_age_s = max_age_s
        self._drop_all_views()

    def heard(self, event: LoadsElsewhere) -> None:
        """The other replicas have told what they have in flight."""
        self._drop_views(self.elsewhere.told(event))

    def serves(self, model: str) -> bool:
        """Whether any worker, well or not, serves the model."""
        return self._models[model] > 0

    def least_backlog_tokens(self, worker_ids: Iterable[WorkerId]) -> int:
        """Prompt tokens that the least busy of these workers has yet to compute, as far as that is known exactly.

        Which is of what was sent from here, and of what the others told of late.
        """
        own = self._ledger.tally
        if self._hears:
            other = self.elsewhere.tally
            return min((own(one).prefill_tokens + other(one).prefill_tokens for one in worker_ids), default=0)
        return min((own(one).prefill_tokens for one in worker_ids), default=0)

    def views(self, worker_ids: Iterable[WorkerId], now_s: float) -> list[WorkerView]:
        """The workers as decisions at `now_s` see them, whatever they hold of a prompt."""
        states = self._states
        if self.elsewhere.is_believed(now_s) != self._hears:
            self._hears = not self._hears
            self._drop_all_views()
        self._drop_views(self._ledger.touched)
        self._ledger.touched.clear()
        return [
            view
            if (view := (state := states[worker_id]).view) is not None and now_s <= state.view_end_s
            else self._look(state, now_s)
            for worker_id in worker_ids
        ]

    def _drop_views(self, of: Iterable[WorkerId]) -> None:
        for worker_id in of:
            state = self._states.get(worker_id)
            if state is not None:
                state.view = None

    def _drop_all_views(self) -> None:
        for state in self._states.values():
            state.view = None

    def _look(self, state: WorkerState, now_s: float) -> WorkerView:
        sample = state.fresh_sample(now_s, self.sample_max_age_s)
        tally, counted = self._ledger.tally(state.spec.worker_id), sample
        if self._hears:
            # The sample counts the same requests, and others' that were told of since cannot be told apart in it.
            tally, counted = tally.plus(self.elsewhere.tally(state.spec.worker_id)), None
        state.view = view = self._build(state, tally, sample, counted)
        state.rests_on = sample
        state.view_end_s = math.inf if sample is None else sample.at_s + self.sample_max_age_s
        return view

    @staticmethod
    def _build(
        state: WorkerState, tally: Tally, sample: WorkerSample | None, counted: WorkerSample | None
    ) -> WorkerView:
        spec = state.spec
        capacity = state.kv_capacity_tokens
        kv_tokens, resident_kv_tokens = _kv_tokens(state, tally, counted, capacity)
        requests, resident_requests = _requests(state, tally, counted)
        hit_tokens = 0
        return WorkerView(
            spec.worker_id,
            spec.role,
            requests,
            resident_requests,
            tally.prefill_tokens,
            kv_tokens,
            capacity,
            _kv_ratio(kv_tokens, capacity, sample),
            _kv_ratio(resident_kv_tokens, capacity, sample),
            None if sample is None else sample.waiting,
            hit_tokens,
            spec.max_batched_tokens,
            state.kv_block_tokens,
        )


def _requests(state: WorkerState, tally: Tally, sample: WorkerSample | None) -> tuple[int, int]:
    """All in flight, and those of which something is here."""
    here = tally.requests - tally.awaited_requests
    if sample is None or sample.running is None:
        return tally.requests, here
    before, seen = state.tally_at_sample, sample.running + (sample.waiting or 0)
    here_then = before.requests - before.awaited_requests
    return max(tally.requests, seen + tally.requests - before.requests), max(here, seen + here - here_then)


def _kv_tokens(state: WorkerState, tally: Tally, sample: WorkerSample | None, capacity: int | None) -> tuple[int, int]:
    """All that is held or reserved, and that without what is reserved for KV which is not on its way yet."""
    here = tally.kv_tokens - tally.awaited_kv_tokens
    if sample is None or sample.kv_used_ratio is None or capacity is None:
        return tally.kv_tokens, here
    before, seen = state.tally_at_sample, int(sample.kv_used_ratio * capacity)
    here_then = before.kv_tokens - before.awaited_kv_tokens
    return max(tally.kv_tokens, seen + tally.kv_tokens - before.kv_tokens), max(here, seen + here - here_then)


def _kv_ratio(kv_tokens: int, capacity: int | None, sample: WorkerSample | None) -> float | None:
    if capacity:
        return kv_tokens / capacity
    return None if sample is None else sample.kv_used_ratio
