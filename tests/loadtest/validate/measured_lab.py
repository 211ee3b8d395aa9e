"""A measured run of two requests, small enough to count by hand."""

from typing import Any

FIRST = {
    "request_id": "a",
    "input_toks": 100,
    "output_toks": 3,
    "arrival_time": 1_700_000_000.0,
    "queued_ts": 50.0,
    "scheduled_ts": 50.0,
    "first_token_ts": 50.5,
    "last_token_ts": 51.5,
}
SECOND = {
    "request_id": "b",
    "input_toks": 40,
    "output_toks": 1,
    "arrival_time": 1_700_000_000.25,
    "queued_ts": 50.5,
    "scheduled_ts": 50.75,
    "first_token_ts": 51.0,
    "last_token_ts": 51.0,
}


def small_run(**meta: Any) -> dict[str, Any]:
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "tensor_parallel_size": 1}
    memory = {"mem_size": 96, "mem_util": 0.9}
    return {
        "requests": [dict(FIRST), dict(SECOND)],
        "meta": {"engine_kwargs": limits, **meta},
        "config": {"link_bw": 16, "link_latency": 20_000, "nodes": [{"instances": [{"npu_mem": memory}]}]},
    }
