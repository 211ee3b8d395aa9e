"""Sends the probes of a plan and keeps what they measured.

The rule of this module: one probe at a time, on a worker that is otherwise idle. Every prompt is one that no cache has
seen, but for prefixes that are to be found there.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadtest.calibrate.limits import CalibrationError, Limits
from loadtest.calibrate.observation import (
    Observation,
    decode_observation,
    median_observation,
    prefill_observation,
    transfer_observation,
)
from loadtest.calibrate.plan import WARM_UP_STREAMS, Kind, Plan, Probe, decode_output_tokens
from loadtest.calibrate.target import Ask, AskError, Heard, Target
from loadtest.traces.prompts import PromptBuilder
from loadtest.traces.types import TraceRequest

TRANSFER_OUTPUT_TOKENS = 2
FAILURE_SHARE = 0.2
"""Of the probes, so many may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a calibration saw."""

    observations: tuple[Observation, ...]
    """One per probe of the plan: of its repeats the median."""
    repeats: int
    """How many measurements those are medians of."""
    requests: int
    """Sent in all, warm-up included."""
    failures: tuple[str, ...]
    """Why probes were left out."""
    moved_tokens: int
    """Prompt tokens of all transfers, in whole blocks."""


class Texts:
    """Prompts of words; after `learn` their lengths are about right in the worker's own tokens."""

    def __init__(self, seed: int) -> None:
        self._builder = PromptBuilder(seed)
        self._words_per_token = 1.0
        self._serial = 0

    def learn(self, words: int, tokens: int) -> None:
        """A prompt of so many words had so many tokens."""
        self._words_per_token = words / tokens

    def fresh(self, tokens: int) -> str:
        """A prompt unlike any other."""
        self._serial += 1
        words = max(1, round(tokens * self._words_per_token))
        return self._builder.text(TraceRequest(index=self._serial, arrival_s=0.0, input_tokens=words, output_tokens=1))


class Prober:
    """One calibration's conversation with a worker, and with a prefill worker where transfers are measured."""

    def __init__(
        self,
        worker: Target,
        limits: Limits,
        texts: Texts,
        *,
        prefill_worker: Target | None = None,
        on_sent: Callable[[int], object] | None = None,
    ) -> None:
        self._worker = worker
        self._prefill_worker = prefill_worker
        self._limits = limits
        self._texts = texts
        self._on_sent = on_sent
        self._requests = 0
        self._moved_tokens = 0
        self._prefixes: dict[int, str] = {}
        self._kept: defaultdict[Probe, list[Observation]] = defaultdict(list)

    async def run(self, plan: Plan) -> Measured:
        """Warm up, then all rounds.

        Raises:
            CalibrationError: the warm-up failed, or too many probes did.
        """
        await self._warm_up(plan)
        failures: list[str] = []
        asked = 0
        for probes in plan.rounds:
            for probe in probes:
                asked += 1
                try:
                    await self._probe(probe)
                except AskError as error:
                    failures.append(f"{probe.kind} {probe.size} over {probe.context_tokens}: {error}")
                if len(failures) > max(3, FAILURE_SHARE * asked):
                    raise CalibrationError(f"{len(failures)} of {asked} probes failed; the last was {failures[-1]}")
        return Measured(
            observations=tuple(map(median_observation, self._kept.values())),
            repeats=sum(map(len, self._kept.values())),
            requests=self._requests,
            failures=tuple(failures),
            moved_tokens=self._moved_tokens,
        )

    async def _warm_up(self, plan: Plan) -> None:
        first, *longer = plan.warm_up_tokens
        try:
            (heard,) = await self._ask(Ask(text=self._texts.fresh(first), output_tokens=2))
            self._texts.learn(first, heard.prompt_tokens)
            for tokens in longer:
                await self._ask(Ask(text=self._texts.fresh(tokens), output_tokens=2))
            ask = [Ask(text=self._texts.fresh(first), output_tokens=16) for _ in range(WARM_UP_STREAMS)]
            await self._ask(*ask)
            if plan.warms_transfers:
                await self._transfer(2 * self._limits.block_tokens)
        except AskError as error:
            raise CalibrationError(f"the warm-up failed: {error}") from error

    async def _probe(self, probe: Probe) -> None:
        match probe.kind:
            case Kind.PREFILL:
                seen = await self._prefill(probe)
            case Kind.DECODE:
                seen = await self._decode(probe)
            case Kind.TRANSFER:
                seen = transfer_observation(await self._transfer(probe.size))
        self._kept[probe].append(seen)

    async def _prefill(self, probe: Probe) -> Observation:
        text = self._texts.fresh(probe.size)
        if probe.context_tokens:
            if probe.context_tokens not in self._prefixes:
                raise AskError("its prefix was not computed")
            text = self._prefixes[probe.context_tokens] + text
        (heard,) = await self._ask(Ask(text=text, output_tokens=1))
        if not probe.context_tokens:
            self._prefixes[probe.size] = text
        return prefill_observation(
            probe, heard, block_tokens=self._limits.block_tokens, budget_tokens=self._limits.max_batched_tokens
        )

    async def _decode(self, probe: Probe) -> Observation:
        tokens = decode_output_tokens(probe, self._limits)
        asks = [Ask(text=self._texts.fresh(probe.context_tokens), output_tokens=tokens) for _ in range(probe.size)]
        seen = decode_observation(await self._ask(*asks))
        if seen is None:
            raise AskError(f"{probe.size} streams did not decode together long enough: is the largest batch smaller?")
        return seen

    async def _transfer(self, tokens: int) -> Heard:
        assert self._prefill_worker is not None
        ask = Ask(text=self._texts.fresh(tokens), output_tokens=TRANSFER_OUTPUT_TOKENS)
        self._count(1)
        params = await self._prefill_worker.prefill(ask)
        (heard,) = await self._ask(replace(ask, kv_transfer_params=params))
        size = self._limits.block_tokens
        self._moved_tokens += -(-heard.prompt_tokens // size) * size
        return heard

    async def _ask(self, *asks: Ask) -> list[Heard]:
        self._count(len(asks))
        return await self._worker.stream(asks)

    def _count(self, requests: int) -> None:
        self._requests += requests
        if self._on_sent is not None:
            self._on_sent(requests)
