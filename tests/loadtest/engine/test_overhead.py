import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.step_cost import StepWork
from loadtest.engine.fitting import overhead
from loadtest.engine.fitting.overhead import BENCH, BENCH_MODEL, decode_seconds, fit_step_overhead
from loadtest.engine.fitting.rtx import profiled_costs
from loadtest.engine.fitting.rtx_profile import profile_file
from loadtest.engine.fitting.sources import SIM_RUNS

SEQUENCES = 4
OUTPUT_TOKENS = 2000
FIRST_S, LAST_S = 2.0, 12.0


def chunk_us(new: int, before: int) -> float:
    return 20 + 0.03 * new + 1e-4 * new * (before + (new + 1) / 2)


def profile() -> dict[str, str]:
    attention = [f"0,0,{n},{kv},{10 + n + 0.01 * n * kv}" for n in (1, 8, 64) for kv in (64, 512, 4096)]
    for chunk, decodes in itertools.product((64, 2048), (0, 8)):
        attention.append(f"{chunk},0,{decodes},64,{chunk_us(chunk, 0) + 1.64 * decodes}")
    attention.append(f"512,1024,8,512,{chunk_us(512, 1024) + 8 + 0.01 * (1024 + 8 * 512)}")
    return {
        "attention": "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *attention]),
        "dense": "layer,tokens,time_us\nqkv_proj,1,100\nqkv_proj,4096,100",
        "per_sequence": "layer,sequences,time_us\nlm_head,1,900\nlm_head,256,900",
    }


def run(step_s: float) -> dict[str, Any]:
    """Four sequences that decode from second 2 to 12, with the step time given."""
    request = {
        "input_toks": 100,
        "output_toks": OUTPUT_TOKENS,
        "scheduled_ts": 0.0,
        "first_token_ts": FIRST_S,
        "last_token_ts": LAST_S,
    }
    series = ["t,gen_throughput", *(f"{t},{SEQUENCES / step_s}" for t in range(1, 14))]
    return {"bench": BENCH, "requests": [request] * SEQUENCES, "timeseries_csv": "\n".join(series)}


def test_the_overhead_is_what_steps_take_beyond_their_kernels(tmp_path: Path) -> None:
    with gzip.open(tmp_path / profile_file(BENCH_MODEL.profile), "wt") as file:
        json.dump(profile(), file)
    kernels, _ = profiled_costs(tmp_path, BENCH_MODEL)
    # The median second is the middle one, when half of the output is made.
    middle = StepWork(decode_sequences=SEQUENCES, decode_context_tokens=SEQUENCES * (100 + OUTPUT_TOKENS // 2))
    with gzip.open(tmp_path / SIM_RUNS, "wt") as file:
        file.write(json.dumps(run(kernels.step_seconds(middle) + 0.001)))
    assert fit_step_overhead(tmp_path) == pytest.approx(0.001, abs=1e-6)


def test_seconds_with_a_first_token_or_with_few_sequences_say_nothing_about_steps() -> None:
    seconds = list(decode_seconds(run(0.01)))
    assert len(seconds) == LAST_S - FIRST_S
    assert all(second.sequences == SEQUENCES for second in seconds)
    late = run(0.01)
    late["requests"] = late["requests"][:1]
    assert overhead.MIN_RUNNING > 1
    assert not list(decode_seconds(late))


def test_contexts_grow_from_the_prompt_to_the_whole() -> None:
    contexts = [second.context_tokens for second in decode_seconds(run(0.01))]
    assert contexts[0] == pytest.approx(100 + 0.05 * OUTPUT_TOKENS)
    assert contexts[-1] == pytest.approx(100 + 0.95 * OUTPUT_TOKENS)
