"""Workers under probe without sockets: the engine model in virtual time, heard with noise."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from gateway.core.step_cost import CostTable
from loadtest.calibrate.target import Ask, Heard
from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineEvent, EngineRequest, EngineSpec, RequestFinished, TokenMade
from loadtest.worker import tokenizer


@dataclass
class EngineTarget:
    """A worker whose clients are `late_s` away, and hear each token up to some noise later."""

    spec: EngineSpec
    costs: CostTable
    seed: int = 0
    late_s: float = 0.0
    noise_s: float = 0.0
    """Mean of an exponential delay of every token."""
    requests: int = 0
    largest_batch: int = 0
    _now_s: float = 0.0
    _held: dict[str, Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.spec, self.costs)
        self._rng = np.random.default_rng(self.seed)

    async def stream(self, asks: Sequence[Ask]) -> list[Heard]:
        self.largest_batch = max(self.largest_batch, len(asks))
        sent_s = self._now_s
        names = [self._add(self.engine, ask, sent_s) for ask in asks]
        events = self._drain(self.engine, sent_s + self.late_s)
        return [self._heard(ask, sent_s, events[name]) for ask, name in zip(asks, names, strict=True)]

    async def prefill(self, ask: Ask) -> bytes:
        name = self._add(self.engine, replace(ask, output_tokens=1), self._now_s, holds_kv=True)
        self._drain(self.engine, self._now_s)
        return msgspec.json.encode({"remote_request_id": name})

    async def metrics(self) -> str:
        return ""

    def _add(self, engine: Engine, ask: Ask, now_s: float, *, holds_kv: bool = False) -> str:
        self.requests += 1
        data = ask.text.encode()
        tokens = tokenizer.count_tokens(data)
        request = EngineRequest(
            request_id=f"r{self.requests}",
            prompt_tokens=tokens,
            output_tokens=ask.output_tokens,
            block_hashes=tokenizer.block_hashes(data, block_tokens=self.spec.block_tokens, seed=0),
            holds_kv=holds_kv,
            remote_tokens=tokens if ask.kv_transfer_params else 0,
        )
        engine.add(request, now_s + self.late_s)
        return request.request_id

    def _drain(self, engine: Engine, now_s: float) -> dict[str, list[EngineEvent]]:
        events: defaultdict[str, list[EngineEvent]] = defaultdict(list)
        at_s: float | None = now_s
        while at_s is not None:
            for event in engine.advance(at_s):
                events[event.request_id].append(event)
            self._now_s = at_s
            at_s = engine.next_event_at_s()
        return events

    def _heard(self, ask: Ask, sent_s: float, events: list[EngineEvent]) -> Heard:
        made = [event.at_s for event in events if isinstance(event, TokenMade)]
        (finished,) = (event for event in events if isinstance(event, RequestFinished))
        late = self._rng.exponential(self.noise_s, len(made)) if self.noise_s else np.zeros(len(made))
        # Bytes never overtake each other.
        heard = np.maximum.accumulate(np.array(made) + late)
        return Heard(
            sent_s=sent_s,
            token_s=tuple(heard.tolist()),
            prompt_tokens=tokenizer.count_tokens(ask.text.encode()),
            cached_tokens=finished.cached_tokens,
        )
