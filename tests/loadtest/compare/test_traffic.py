from pathlib import Path

import pytest

from loadtest.compare.traffic import WORKLOADS, Half, missing
from tests.loadtest.compare.compare_lab import traffic

DATA = Path(__file__).parents[4] / "shared" / "data"


def test_the_halves_are_of_one_traffic_and_share_no_request() -> None:
    learn, judge = traffic(Half.LEARN).load(), traffic(Half.JUDGE).load()
    assert len(learn) == len(judge) == 200
    assert learn[0].arrival_s == judge[0].arrival_s == 0.0
    assert [each.index for each in judge] == list(range(200))
    assert [each.input_tokens for each in learn] != [each.input_tokens for each in judge]


def test_a_scale_speeds_arrivals_up_and_leaves_requests_alone() -> None:
    slow, fast = traffic(scale=3.0).load(), traffic(scale=4.0).load()
    assert fast[-1].arrival_s == pytest.approx(slow[-1].arrival_s * 3.0 / 4.0)
    assert [each.input_tokens for each in slow] == [each.input_tokens for each in fast]


def test_without_the_traces_generators_stand_in_and_are_named() -> None:
    assert all(spec.startswith("synthetic:") for spec in traffic(workload="mix").sources())
    assert len(missing("mix", None)) == 4
    assert missing("mooncake", Path("nowhere")) == ["traces/mooncake_conversation_trace.jsonl.gz"]


def test_a_trace_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "azure2023_conv.csv.gz").touch()
    assert missing("azure", tmp_path) == []
    (spec,) = traffic(data=tmp_path).sources()
    assert spec == f"azure:{tmp_path}/traces/azure2023_conv.csv.gz"


def test_a_mix_holds_all_of_its_sources_in_their_shares() -> None:
    requests = traffic(workload="mix", requests=300, scale=1.0).load()
    plain = sum(not each.hash_ids for each in requests)
    assert 0.15 < plain / len(requests) < 0.55
    assert {each.block_tokens for each in requests} >= {512}


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_sessions_are_under_way_when_the_learning_half_begins(scale: float) -> None:
    learn, judge = (traffic(half, workload="agents", requests=600, scale=scale).load() for half in Half)
    rates = [len(half) / half[-1].arrival_s for half in (learn, judge)]
    assert rates[0] == pytest.approx(rates[1], rel=0.25)
    assert rates[0] == pytest.approx(scale, rel=0.35)


def test_shares_add_up_to_a_request_per_second() -> None:
    assert {name: round(sum(each.share for each in own), 6) for name, own in WORKLOADS.items()} == dict.fromkeys(
        WORKLOADS, 1.0
    )


def test_equal_traffic_is_equal_request_for_request() -> None:
    assert traffic(seed=5).load() == traffic(seed=5).load()
    assert traffic(seed=5).load() != traffic(seed=6).load()


@pytest.mark.shared_data
@pytest.mark.skipif(bool(missing("mix", DATA)), reason="the public traces are not here")
def test_the_real_mix_holds_all_its_traces_in_their_shares() -> None:
    requests = traffic(workload="mix", requests=600, scale=4.0, data=DATA).load()
    of_sessions = sum(each.session is not None for each in requests) / len(requests)
    without_prefixes = sum(not each.hash_ids for each in requests) / len(requests)
    assert of_sessions == pytest.approx(1 / 3, abs=0.12)
    assert without_prefixes == pytest.approx(1 / 3, abs=0.12)
