"""What a decision log observed of its workers.

The rule of this module: only requests that hardly queued count, and the log itself tells which those are: it holds
every request that its gateway sent, so that what else a worker had to do at a time follows from the others. Traffic
that came by other ways is unknown to it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.core.step_cost import StepWork
from gateway.core.types import Decision, OutcomeKind, Path
from gateway.wire.decision_record import DecisionRecord
from loadtest.calibrate.observation import Observation, prefill_steps
from loadtest.calibrate.plan import Kind
from loadtest.engine.fitting.regression import Array

QUEUED_SHARE = 0.02
"""Of a first token's time, other prompts may be under way on the same worker this long."""
DISTURBED_SHARE = 0.05
"""Of an answer's decoding time, prompts may be computed on the same worker this long."""
LEAST_GAPS = 8
"""Answers with fewer gaps between their tokens tell little of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """One request's phases, in engine seconds since the first arrival."""

    record: DecisionRecord
    decision: Decision
    prefiller: str
    prompt_tokens: int
    arrived_s: float
    first_token_s: float
    ended_s: float
    tpot_s: float | None


class _Occupancy:
    """How much of something was going on, over time; it may be asked for the mean over any stretch."""

    def __init__(self, starts_s: Sequence[float], ends_s: Sequence[float], weights: Sequence[float]) -> None:
        self._rises = _Ramp(starts_s, weights)
        self._falls = _Ramp(ends_s, weights)

    def mean(self, begin_s: float, end_s: float) -> float:
        """The mean between two times; zero where they are one."""
        return (self._total(end_s) - self._total(begin_s)) / (end_s - begin_s) if end_s > begin_s else 0.0

    def _total(self, at_s: float) -> float:
        return self._rises.at(at_s) - self._falls.at(at_s)


class _Ramp:
    """The sum of weight x (t - moment) over the moments before t."""

    def __init__(self, moments_s: Sequence[float], weights: Sequence[float]) -> None:
        order = np.argsort(moments_s)
        self._moments_s: Array = np.asarray(moments_s, dtype=np.float64)[order]
        sorted_weights = np.asarray(weights, dtype=np.float64)[order]
        self._weights: Array = np.concatenate([[0.0], np.cumsum(sorted_weights)])
        self._areas: Array = np.concatenate([[0.0], np.cumsum(sorted_weights * self._moments_s)])

    def at(self, at_s: float) -> float:
        place = int(np.searchsorted(self._moments_s, at_s))
        return float(self._weights[place] * at_s - self._areas[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What one worker had to do."""

    prompts: _Occupancy
    sequences: _Occupancy
    context_tokens: _Occupancy


def log_observations(records: Iterable[DecisionRecord], *, budget_tokens: int, speed: float = 1.0) -> list[Observation]:
    """First tokens and decode steps of the requests that hardly queued, in order of arrival.

    `budget_tokens` is the engine's token budget of one step; `speed` is that of an emulated fleet, whose log has real
    seconds.
    """
    served = _served(records, speed)
    loads = _loads(served)
    return [seen for one in served for seen in _observations(one, loads, budget_tokens)]


def _served(records: Iterable[DecisionRecord], speed: float) -> list[_Served]:
    routed = [(record, record.decision) for record in records if record.decision is not None]
    begin_s = min((record.arrived_at_s for record, _ in routed), default=0.0)
    served = []
    for record, decision in routed:
        outcome = record.outcome
        arrived_s = (record.arrived_at_s - begin_s) * speed
        ended_s = arrived_s + outcome.duration_s * speed
        remote = decision.path is Path.REMOTE and decision.prefill_worker is not None
        served.append(
            _Served(
                record=record,
                decision=decision,
                prefiller=str(decision.prefill_worker if remote else decision.decode_worker),
                prompt_tokens=outcome.input_tokens or decision.features.isl_tokens,
                arrived_s=arrived_s,
                first_token_s=ended_s if outcome.ttft_s is None else arrived_s + outcome.ttft_s * speed,
                ended_s=ended_s,
                tpot_s=None if outcome.tpot_s is None else outcome.tpot_s * speed,
            )
        )
    return sorted(served, key=lambda one: one.arrived_s)


def _loads(served: Iterable[_Served]) -> dict[str, _Load]:
    prompts: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    decodes: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for one in served:
        prompts[one.prefiller].append((one.arrived_s, one.first_token_s, 1.0))
        decodes[str(one.decision.decode_worker)].append((one.first_token_s, one.ended_s, _context_tokens(one)))
    return {
        worker: _Load(
            prompts=_occupancy(prompts[worker]),
            sequences=_occupancy([(start, end, 1.0) for start, end, _ in decodes[worker]]),
            context_tokens=_occupancy(decodes[worker]),
        )
        for worker in {*prompts, *decodes}
    }


def _occupancy(phases: Sequence[tuple[float, float, float]]) -> _Occupancy:
    starts, ends, weights = zip(*phases, strict=True) if phases else ((), (), ())
    return _Occupancy(starts, ends, weights)


def _context_tokens(one: _Served) -> float:
    """Of the sequence, on average while it decodes."""
    return one.prompt_tokens + (one.record.outcome.output_tokens or 0) / 2


def _observations(one: _Served, loads: Mapping[str, _Load], budget_tokens: int) -> Iterator[Observation]:
    decision, outcome = one.decision, one.record.outcome
    if outcome.kind is not OutcomeKind.OK or outcome.ttft_s is None or decision.attempt != 1:
        return
    own = loads[one.prefiller]
    # Its own prompt is under way all the time.
    if own.prompts.mean(one.arrived_s, one.first_token_s) <= 1 + QUEUED_SHARE:
        yield _first_token(one, loads, budget_tokens)
    load = loads[str(decision.decode_worker)]
    gaps = (outcome.output_tokens or 0) - 1
    if one.tpot_s is None or gaps < LEAST_GAPS:
        return
    if load.prompts.mean(one.first_token_s, one.ended_s) <= DISTURBED_SHARE:
        yield Observation(kind=Kind.DECODE, steps=(_decodes(one, load),), seconds=one.tpot_s)


def _decodes(one: _Served, load: _Load) -> StepWork:
    """A step of its own decoding, in which it is one of the sequences."""
    work = _beside(load, one.first_token_s, one.ended_s)
    return work if work.decode_sequences else StepWork(decode_sequences=1, decode_context_tokens=one.prompt_tokens)


def _beside(load: _Load, begin_s: float, end_s: float) -> StepWork:
    """What decoded on a worker, on average; it may be empty."""
    return StepWork(
        decode_sequences=round(load.sequences.mean(begin_s, end_s)),
        decode_context_tokens=round(load.context_tokens.mean(begin_s, end_s)),
    )


def _joined(step: StepWork, others: StepWork) -> StepWork:
    return StepWork(
        prefill=step.prefill,
        decode_sequences=step.decode_sequences + others.decode_sequences,
        decode_context_tokens=step.decode_context_tokens + others.decode_context_tokens,
    )


def _first_token(one: _Served, loads: Mapping[str, _Load], budget_tokens: int) -> Observation:
    """Its prompt's steps and on the remote path the decode leg's, beside the sequences that decode there."""
    decision, outcome, prompt = one.decision, one.record.outcome, one.prompt_tokens
    remote = one.prefiller != str(decision.decode_worker)
    cached = outcome.cached_tokens
    if cached is None:
        cached = decision.prefill_hit_tokens if remote else decision.decode_hit_tokens
    cached = min(cached, prompt - 1)
    legs = [(one.prefiller, prefill_steps(prompt - cached, cached, budget_tokens))]
    if remote:
        legs.append((str(decision.decode_worker), (StepWork(decode_sequences=1, decode_context_tokens=prompt),)))
    steps, awaited = [], []
    for worker, own in legs:
        others = _beside(loads[worker], one.arrived_s, one.first_token_s)
        steps += [_joined(step, others) for step in own]
        if others.decode_sequences:
            awaited.append(others)
    return Observation(
        kind=Kind.PREFILL,
        steps=tuple(steps),
        seconds=one.first_token_s - one.arrived_s,
        intakes=len(legs),
        intake_tokens=len(legs) * prompt,
        moved_tokens=prompt if remote else 0,
        awaited=tuple(awaited),
    )
