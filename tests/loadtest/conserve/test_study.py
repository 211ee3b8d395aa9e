"""Whole comparisons, of a few conversations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.core.path.price import PriceWeights
from loadtest.conserve.arms import (
    CONSERVE_ARM,
    LOCAL,
    PER_TURN,
    PER_TURN_COLD,
    REMOTE,
    REMOTE_COLD,
    Arm,
    Place,
    combined,
)
from loadtest.conserve.learning import RANGES, Wish
from loadtest.conserve.runs import Runs
from loadtest.conserve.saturation import FIRST_RPS, GROWTH, KEPT, ROOMY, saturation_rps
from loadtest.conserve.serving import Task
from loadtest.conserve.study import Effort, Study, compare_place
from loadtest.conserve.traffic import Talk
from tests.loadtest.conserve.conserve_lab import served

PLACE = Place(workload="miniswe", pools="1P3D")
TALK = Talk(workload="miniswe", sessions=12, rate_rps=0.5, seed=1)
TINY = Effort(
    serve_s=10.0, least_sessions=6, most_sessions=8, seeds=(0, 1), learn_seed=9, window_s=8.0, budget=4, draws=20
)


def run(arm: Arm, place: Place = PLACE) -> Task:
    return Task(place=place, talk=TALK, arm=arm)


class TestServing:
    def test_conserve_moves_each_conversation_once_and_all_are_served(self) -> None:
        found = run(CONSERVE_ARM).run()
        assert set(found.transfers) == {1}
        assert all(math.isfinite(each) for each in found.ttfet_s)
        assert found.energy_j > 0
        assert found.live_kv_tokens > 0

    def test_equal_tasks_give_equal_runs(self) -> None:
        assert run(combined(PriceWeights())).run() == run(combined(PriceWeights())).run()

    def test_prefillers_that_keep_nothing_compute_every_prompt_anew(self) -> None:
        kept, cold = run(REMOTE).run(), run(REMOTE_COLD).run()
        assert cold.cached_ratio == 0.0 < kept.cached_ratio
        assert cold.energy_j > kept.energy_j

    def test_one_that_knows_so_prefills_more_on_the_decode_workers(self) -> None:
        assert run(PER_TURN_COLD).run().local_ratio > run(PER_TURN).run().local_ratio

    def test_all_local_uses_the_same_gpus_and_moves_nothing(self) -> None:
        assert LOCAL.fleet(PLACE).pools.both == 4
        assert set(run(LOCAL).run().transfers) == {0}

    def test_capped_decoders_take_less_energy(self) -> None:
        capped = Arm(name="capped", path=CONSERVE_ARM.path, rules=CONSERVE_ARM.rules, options="@cap50")
        assert run(capped).run().energy_j < run(CONSERVE_ARM).run().energy_j

    def test_names_do_not_tell_runs_apart_and_memory_does(self) -> None:
        assert run(Arm(name="other", path=REMOTE.path, uses_prices=False)).key == run(REMOTE).key
        assert run(REMOTE, Place(workload="miniswe", pools="1P3D", kv_share=0.5)).key != run(REMOTE).key


class TestRuns:
    def test_what_was_served_is_read_again(self, tmp_path: Path) -> None:
        (first,) = Runs(tmp_path).serve_all([run(REMOTE)])
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes())
        before = file.stat().st_mtime_ns
        assert Runs(tmp_path).serve_all([run(REMOTE)]) == [first]
        assert file.stat().st_mtime_ns == before
        (rate,) = Runs(tmp_path).throughputs([run(REMOTE)])
        assert rate > 0
        assert len(list(tmp_path.iterdir())) == 2


@dataclass(frozen=True)
class _Fixed(Runs):
    """Fleets that get so many answers per second done, and a roomy one that gets all done."""

    limit_rps: float = 20.0

    def throughputs(self, tasks: Sequence[Task]) -> list[float]:
        offered = [(task.place.pools == ROOMY, task.talk.rate_rps * 10) for task in tasks]
        return [each if is_roomy else min(each, self.limit_rps) for is_roomy, each in offered]


@pytest.mark.parametrize("limit_rps", [3.0, 20.0, 55.0])
def test_saturation_is_the_highest_rate_that_is_kept_up_with(limit_rps: float) -> None:
    found = saturation_rps(PLACE, REMOTE, TALK, _Fixed(limit_rps=limit_rps), window_s=10.0)
    assert limit_rps / 1.11 < 10 * found * GROWTH**0.25
    assert 10 * found * KEPT <= limit_rps


def test_one_that_keeps_up_with_nothing_has_the_lowest_rate() -> None:
    assert saturation_rps(PLACE, REMOTE, TALK, _Fixed(limit_rps=0.1), window_s=10.0) == FIRST_RPS


class TestWish:
    def test_the_shorter_ttfet_wins_and_a_longer_tbt_loses(self) -> None:
        wish = Wish(baseline=served(), conserve=served())
        plain = wish.value(served())
        assert wish.value(served(ttfet_s=[0.05 + number / 200 for number in range(40)])) > plain
        assert wish.value(served(last_tbt_s=[0.03] * 40)) < plain

    def test_energy_above_conserves_costs_more_than_a_ttfet_can_gain(self) -> None:
        wish = Wish(baseline=served(energy_j=50_000.0), conserve=served(energy_j=40_000.0))
        faster = served(ttfet_s=[0.09 + number / 110 for number in range(40)], energy_j=50_000.0)
        assert wish.value(faster) < wish.value(served(energy_j=40_000.0))


def test_a_whole_place(tmp_path: Path) -> None:
    heard: list[str] = []
    study = Study(place=PLACE, effort=TINY, runs=Runs(tmp_path), baselines=(PER_TURN, PER_TURN_COLD))
    cells, weights = compare_place(study, heard.append)
    assert [cell.baseline for cell in cells] == [PER_TURN.name, PER_TURN_COLD.name, PER_TURN.name]
    assert cells[-1].kv_share < 1.0
    names = {arm.name for arm in cells[0].arms}
    assert names == {
        "per turn",
        "dynamo, tuned",
        "all local",
        "conserve",
        "conserve, chunked appends",
        "conserve, capped decoders",
        "combined",
    }
    assert all(low <= getattr(weights, name) <= high for name, (low, high) in RANGES.items())
    for cell in cells:
        assert cell.stand_ins == ["traces/lmcache_agent_miniswe.jsonl.gz"]
        assert cell.floor_p95_s > 0
        own = cell.arm(cell.baseline)
        assert own is not None
        assert own.beside == {}
    assert heard[0] == pytest.approx(heard[0])
    assert heard[-1] == cells[-1].label
