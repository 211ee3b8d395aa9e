import gzip
import itertools
import json
from pathlib import Path

import pytest

from gateway.core.step_cost import StepWork
from loadtest.engine.fitting.rtx import Link, ProfiledModel, all_reduce_seconds, profiled_costs
from loadtest.engine.fitting.rtx_profile import profile_file, read_profile

MODEL = ProfiledModel(profile="gpu_model", layers=3, hidden=1000)
DENSE_US = {"embedding": 5, "layernorm": 2, "qkv_proj": 100, "down_proj": 200, "final_layernorm": 7}
DENSE_STEP_US = 5 + 3 * (2 * 2 + 100 + 200) + 7
LM_HEAD_US = 900


def decode_us(decodes: int, context: int) -> float:
    return 10 + 0.5 * decodes + 0.01 * decodes * context


def mixed_us(new: int, before: int, decodes: int, context: int) -> float:
    pairs = new * (before + (new + 1) / 2)
    return 20 + 0.03 * new + 1e-4 * pairs + 1.0 * decodes + 0.02 * (before + decodes * context)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a profile of a GPU that obeys the formula, but for rows that the fit must leave out."""
    attention = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for decodes, context in itertools.product((1, 8, 64), (64, 512, 4096)):
        attention.append(f"0,0,{decodes},{context},{decode_us(decodes, context)}")
    for new, before, decodes, context in itertools.product((16, 512, 2048), (0, 1024), (0, 4, 64), (64, 2048)):
        attention.append(f"{new},{before},{decodes},{context},{mixed_us(new, before, decodes, context)}")
    attention += ["0,0,256,64,9e9", "0,0,1,16384,9e9", "0,0,1,16,9e9", "16,16384,0,0,9e9"]
    dense = ["layer,tokens,time_us"] + [f"{name},{n},{us}" for name, us in DENSE_US.items() for n in (1, 4096)]
    per_sequence = ["layer,sequences,time_us"]
    per_sequence += [f"{name},{n},{us}" for name, us in (("lm_head", LM_HEAD_US), ("sampler", 50)) for n in (1, 256)]
    texts = {"attention": attention, "dense": dense, "per_sequence": per_sequence}
    with gzip.open(tmp_path / profile_file(MODEL.profile), "wt") as file:
        json.dump({name: "\n".join(lines) for name, lines in texts.items()}, file)
    return tmp_path


def test_a_step_of_decodes_takes_what_its_kernels_take(data: Path) -> None:
    costs, _ = profiled_costs(data, MODEL)
    expected_us = DENSE_STEP_US + LM_HEAD_US + MODEL.layers * decode_us(10, 700)
    work = StepWork(decode_sequences=10, decode_context_tokens=7000)
    assert costs.step_seconds(work) == pytest.approx(expected_us / 1e6, rel=1e-3)


def test_decodes_beside_a_chunk_read_the_cache_at_the_chunks_price(data: Path) -> None:
    costs, _ = profiled_costs(data, MODEL)
    expected_us = DENSE_STEP_US + LM_HEAD_US + MODEL.layers * mixed_us(300, 100, 10, 700)
    work = StepWork(prefill=((300, 100),), decode_sequences=10, decode_context_tokens=7000)
    assert costs.step_seconds(work) == pytest.approx(expected_us / 1e6, rel=1e-3)


def test_a_second_chunk_costs_its_tokens_only(data: Path) -> None:
    costs, _ = profiled_costs(data, MODEL)
    whole = costs.step_seconds(StepWork(prefill=((400, 0),)))
    halves = costs.step_seconds(StepWork(prefill=((200, 0), (200, 0))))
    pairs = 400 * 401 / 2 - 2 * 200 * 201 / 2
    assert whole - halves == pytest.approx(MODEL.layers * 1e-4 * pairs / 1e6, rel=1e-3)


@pytest.mark.parametrize("prefill", [(), ((100, 0),)])
def test_the_step_overhead_is_added_to_either_kind_of_step(data: Path, prefill: tuple[tuple[int, int], ...]) -> None:
    work = StepWork(prefill=prefill, decode_sequences=1, decode_context_tokens=100)
    without, _ = profiled_costs(data, MODEL)
    with_overhead, _ = profiled_costs(data, MODEL, 0.25)
    assert with_overhead.step_seconds(work) - without.step_seconds(work) == pytest.approx(0.25)


def test_the_fit_tells_how_far_it_lies_from_the_profile(data: Path) -> None:
    _, (decodes, mixed) = profiled_costs(data, MODEL)
    assert (decodes.points, mixed.points) == (9, 36)
    assert decodes.p90 < 1e-3
    assert mixed.p90 < 1e-3


def test_two_gpus_halve_what_is_split_and_pay_for_the_link(data: Path) -> None:
    link = Link(bytes_per_s=1e9, latency_s=1e-5)
    pair = ProfiledModel(profile=MODEL.profile, layers=3, hidden=1000, gpus=2, link=link)
    costs, _ = profiled_costs(data, pair)
    split_us = 3 * (100 + 200) + LM_HEAD_US + 3 * decode_us(10, 700)
    replicated_us = 5 + 3 * 2 * 2 + 7
    expected_s = (split_us / 2 + replicated_us) / 1e6 + 7 * all_reduce_seconds(pair, 10)
    assert costs.step_seconds(StepWork(decode_sequences=10, decode_context_tokens=7000)) == pytest.approx(
        expected_s, rel=1e-3
    )


def test_a_ring_moves_each_half_twice() -> None:
    link = Link(bytes_per_s=1e9, latency_s=1e-5)
    pair = ProfiledModel(profile="", layers=1, hidden=1000, gpus=2, link=link)
    assert all_reduce_seconds(pair, 50) == pytest.approx(50 * 2 * 1000 / 1e9 + 2e-5)
    assert all_reduce_seconds(MODEL, 50) == 0


def test_a_profile_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="llmservingsim_none_tp1"):
        read_profile(tmp_path, "none")
