"""Runs Dynamo's own offline replay; for the Python in which `ai-dynamo` is installed, which need not be ours.

    python replay_driver.py TRACE.jsonl PREFILL DECODE ROUTER

It prints one JSON line: the seconds that the replay took, and TTFT, TPOT, both in milliseconds, of every request.

The rule of this module: it imports nothing of the project.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def _engine(normalise: Callable[[dict[str, Any]], object], role: str) -> object:
    """The vLLM backend's defaults with the KV width of an 8B model and a 400 Gb/s link."""
    return normalise(
        {
            "engine": {
                "backend": "vllm",
                "block_size": 64,
                "worker_type": role,
                "kv_transfer_bytes_per_token": 131_072,
                "kv_transfer_bandwidth": 50.0,
            }
        }
    )


def main() -> None:
    """See the module."""
    from dynamo.llm import KvRouterConfig  # type: ignore[import-not-found]  # noqa: PLC0415
    from dynamo.mocker.config import normalize_mocker_config  # type: ignore[import-not-found]  # noqa: PLC0415
    from dynamo.replay import run_trace_replay  # type: ignore[import-not-found]  # noqa: PLC0415

    trace, prefill, decode, router = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if prefill:
        fleet = {
            "prefill_engine_args": _engine(normalize_mocker_config, "prefill"),
            "decode_engine_args": _engine(normalize_mocker_config, "decode"),
            "num_prefill_workers": prefill,
            "num_decode_workers": decode,
        }
    else:
        fleet = {"extra_engine_args": _engine(normalize_mocker_config, "aggregated"), "num_workers": decode}
    began = time.perf_counter()
    report = run_trace_replay(
        trace,
        router_mode=router,
        router_config=KvRouterConfig() if router == "kv_router" else None,
        trace_block_size=512,
        capture_per_request=True,
        **fleet,
    )
    took_s = time.perf_counter() - began
    rows = report.per_request
    ttft_ms = [row["ttft_ms"] for row in rows]
    tpot_ms = [row["itl_ms"] for row in rows if row["itl_ms"] is not None]
    print(json.dumps({"took_s": took_s, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms}))


if __name__ == "__main__":
    main()
