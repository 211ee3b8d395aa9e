"""One place: what its fleets get done, what is tuned, and every arm at every baseline's load.

The rule of this module: it only says what comes after what. All arms of a cell serve the same conversations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from gateway.core.path.price import PriceWeights
from loadtest.conserve.arms import (
    CONSERVE_ARM,
    CONSERVE_CAPPED,
    CONSERVE_CHUNKED,
    CONSERVE_FIFO,
    ENGINE,
    LOCAL,
    PER_TURN,
    PER_TURN_COLD,
    REMOTE,
    REMOTE_COLD,
    Arm,
    Place,
    combined,
)
from loadtest.conserve.figures import METRICS, drawn
from loadtest.conserve.learning import RANGES, learn_combined, tuned_dynamo
from loadtest.conserve.results import ArmFigures, CellFigures
from loadtest.conserve.runs import Runs
from loadtest.conserve.saturation import saturation_rps
from loadtest.conserve.serving import Served, Task
from loadtest.conserve.traffic import SOURCES, Talk, missing
from loadtest.engine.presets import load_engine
from loadtest.report.ttfet_floor import ttfet_floor_s
from policy_store.costs.engine import engine_costs

LOAD = 0.8
OVERCOMMIT = 1.3
"""Live conversations over KV, where memory is scarce: they are counted where it is not."""
LEAST_KV_SHARE = 0.05
"""Of an engine's KV cache: about what the longest conversation takes."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Sizes and seeds."""

    serve_s: float = 240.0
    """So long conversations begin in a run, as far as the next two allow."""
    least_sessions: int = 300
    most_sessions: int = 600
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    learn_seed: int = 100
    window_s: float = 400.0
    """So long conversations begin at each rate that saturation is looked for at; longer where they take longer."""
    budget: int = 32
    """Weights that `combined` tries."""
    draws: int = 1000

    @property
    def proves(self) -> bool:
        """Whether a claim may rest on it."""
        return len(self.seeds) >= 5 and self.least_sessions >= 300


QUICK = Effort(serve_s=60.0, least_sessions=60, most_sessions=120, seeds=(0, 1), window_s=120.0, budget=6, draws=200)
BASELINES = (PER_TURN, PER_TURN_COLD, REMOTE, REMOTE_COLD)
P_RICH_ONLY = (REMOTE,)
"""A claim is about it on as many prefill as decode workers alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A place and how it is looked at."""

    place: Place
    effort: Effort
    runs: Runs
    data: Path | None = None
    baselines: Sequence[Arm] = BASELINES

    def talk(self, rate_rps: float, seed: int) -> Talk:
        """Conversations that begin at a rate."""
        effort = self.effort
        sessions = min(max(round(rate_rps * effort.serve_s), effort.least_sessions), effort.most_sessions)
        return Talk(workload=self.place.workload, sessions=sessions, rate_rps=rate_rps, seed=seed, data=self.data)

    def saturation_rps(self, arm: Arm) -> float:
        """Turns per second that an arm can be asked for."""
        talk = self.talk(1.0, self.effort.learn_seed)
        window_s = self.effort.window_s * SOURCES[self.place.workload].patience
        rate_rps = saturation_rps(self.place, arm, talk, self.runs, window_s=window_s)
        return rate_rps * talk.turns_mean()

    def rate_rps(self, turns_rps: float, seed: int) -> float:
        """At which conversations begin at the load at which all are compared, where so many turns saturate."""
        return LOAD * turns_rps / self.talk(1.0, seed).turns_mean()


def compare_place(study: Study, tell: Tell) -> tuple[list[CellFigures], PriceWeights]:
    """Every cell of a place, and the weights that `combined` has there."""
    rates = {arm.name: study.saturation_rps(arm) for arm in study.baselines}
    for name, rps in rates.items():
        tell(f"{study.place.label}: '{name}' keeps up with {rps:.1f} turns/s")
    seed = study.effort.learn_seed
    lesson = study.talk(study.rate_rps(rates[PER_TURN.name], seed), seed)
    weights = learn_combined(study.place, lesson, study.runs, budget=study.effort.budget)
    rule = tuned_dynamo(study.place, lesson, study.runs)
    cells = []
    for baseline in study.baselines:
        arms = [baseline, *_others(baseline, rule, weights), CONSERVE_ARM, CONSERVE_CAPPED]
        cells.append(_cell(study, baseline, rates[baseline.name], arms))
        tell(cells[-1].label)
    scarce = _scarce(study, cells)
    cells.append(_cell(scarce, PER_TURN, rates[PER_TURN.name] * SCARCE_LOAD, _scarce_arms(weights)))
    tell(cells[-1].label)
    return cells, weights


SCARCE_LOAD = 0.75
"""Of the load elsewhere: one that ConServe's decode workers have time for, so that memory alone is scarce."""


def _others(baseline: Arm, rule: Arm, weights: PriceWeights) -> Iterator[Arm]:
    """Beside a per-turn baseline `combined`, and those that no claim is about."""
    if baseline == PER_TURN:
        yield from (rule, LOCAL, combined(weights), CONSERVE_CHUNKED)
    elif baseline == PER_TURN_COLD:
        yield from (PER_TURN, combined(weights))


def _scarce_arms(weights: PriceWeights) -> list[Arm]:
    return [PER_TURN, CONSERVE_ARM, CONSERVE_FIFO, combined(weights)]


def _scarce(study: Study, cells: Sequence[CellFigures]) -> Study:
    """The same place with so little KV that live conversations take `OVERCOMMIT` times as much."""
    first = cells[0]
    share = SCARCE_LOAD * first.live_kv_tokens / first.kv_tokens / OVERCOMMIT
    return replace(study, place=replace(study.place, kv_share=min(1.0, max(LEAST_KV_SHARE, round(share, 2)))))


def _cell(study: Study, baseline: Arm, turns_rps: float, arms: Sequence[Arm]) -> CellFigures:
    effort, place = study.effort, study.place
    talks = [study.talk(study.rate_rps(turns_rps, seed), seed) for seed in effort.seeds]
    tasks = [Task(place=place, talk=talk, arm=arm) for arm in arms for talk in talks]
    flat = study.runs.serve_all(tasks)
    count = len(talks)
    served = {arm.name: flat[number * count : (number + 1) * count] for number, arm in enumerate(arms)}
    found = drawn(served, draws=effort.draws)
    own = found[baseline.name]
    floors = [floor_s for talk in talks for floor_s in _floors(talk, effort.most_sessions)]
    spec, _ = load_engine(ENGINE)
    decoders = sum(role.decodes for _, role in baseline.fleet(place).pools.roles())
    return CellFigures(
        workload=place.workload,
        pools=place.pools,
        kv_share=place.kv_share,
        baseline=baseline.name,
        saturation_rps=turns_rps,
        load=LOAD,
        conversations_rps=float(np.mean([talk.rate_rps for talk in talks])),
        conversations=len(served[baseline.name][0].turns),
        seeds=count,
        live_kv_tokens=_mean(served[baseline.name], "live_kv_tokens"),
        kv_tokens=decoders * int(place.kv_share * spec.total_blocks) * spec.block_tokens,
        floor_p50_s=float(np.quantile(floors, 0.5)),
        floor_p95_s=float(np.quantile(floors, 0.95)),
        arms=[
            ArmFigures(
                name=arm.name,
                words=_words(arm),
                figures={metric: found[arm.name].interval(metric) for metric in METRICS},
                beside={} if arm is baseline else {metric: found[arm.name].beside(own, metric) for metric in METRICS},
                prefill_busy=_mean(served[arm.name], "prefill_busy"),
                decode_busy=_mean(served[arm.name], "decode_busy"),
                local_ratio=_mean(served[arm.name], "local_ratio"),
                cached_ratio=_mean(served[arm.name], "cached_ratio"),
                ttft_p95_s=_mean(served[arm.name], "ttft_p95_s"),
            )
            for arm in arms
        ],
        stand_ins=missing(place.workload, study.data),
    )


def _mean(runs: Sequence[Served], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))


def _floors(talk: Talk, most: int) -> Sequence[float]:
    """Of every conversation, less its pauses: what no router goes below, at whatever rate they begin."""
    return _all_floors(replace(talk, rate_rps=1.0, sessions=most))[: talk.sessions]


@lru_cache(maxsize=16)
def _all_floors(talk: Talk) -> Sequence[float]:
    costs = engine_costs(*load_engine(ENGINE))
    return [
        ttfet_floor_s(replace(one, turns=tuple(replace(turn, think_s=0.0) for turn in one.turns)), costs)
        for one in talk.load().sessions
    ]


def _words(arm: Arm) -> str:
    return "; ".join(part for part in (_path_words(arm), arm.options and f"decode pool{arm.options}") if part)


def _path_words(arm: Arm) -> str:
    weights = getattr(arm.path, "weights", None)
    if weights is None or arm.name != "combined":
        return arm.path.name
    return ", ".join(f"{name} {asdict(weights)[name]:.3g}" for name in RANGES)
