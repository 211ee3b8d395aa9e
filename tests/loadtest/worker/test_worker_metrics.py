"""/metrics agrees with what clients were told."""

import pytest

from loadtest.worker.metrics import Histogram
from tests.loadtest.worker.worker_lab import CHAT, COMPLETIONS, Lab, chat, completion, settle

REQUESTS = [
    (CHAT, chat("x" * 1000, max_tokens=30)),
    (CHAT, chat("x" * 1000, max_tokens=30, seed=2)),
    (COMPLETIONS, completion("y" * 700, max_tokens=9)),
    (COMPLETIONS, completion(["a" * 300, [1, 2, 3], "b" * 90], max_tokens=12, ignore_eos=True)),
    (CHAT, chat("x" * 1000 + "z" * 500, max_tokens=4000, seed=4)),
]


async def test_counters_are_the_sums_of_all_usage(lab: Lab) -> None:
    worker = lab.worker()
    calls = [lab.begin(worker, path, body) for path, body in REQUESTS]
    usages = [(await lab.run(call.task)).json()["usage"] for call in calls]
    again = [(await lab.post(worker, path, body)).json()["usage"] for path, body in REQUESTS]
    usages += again
    found = await lab.metrics(worker)
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    assert found["vllm:prompt_tokens_total"] == prompt == found["vllm:prefix_cache_queries_total"]
    assert found["vllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    assert found["vllm:prefix_cache_hits_total"] == cached == found["vllm:prompt_tokens_cached_total"]
    by_source = [value for key, value in found.items() if "prompt_tokens_by_source" in key]
    assert sum(by_source) == prompt


async def test_endings_are_counted_by_reason(lab: Lab) -> None:
    worker = lab.worker()
    for path, body in REQUESTS:
        await lab.post(worker, path, body)
    found = await lab.metrics(worker)
    ended = {key: value for key, value in found.items() if "request_success" in key and value}
    assert ended == {
        'vllm:request_success_total{finished_reason="length"}': 6,
        'vllm:request_success_total{finished_reason="stop"}': 1,
    }


async def test_gauges_tell_what_runs_and_what_waits(lab: Lab) -> None:
    worker = lab.worker(total_blocks=48)
    calls = [lab.begin(worker, CHAT, chat(letter * 4000, max_tokens=200, ignore_eos=True)) for letter in "ab"]
    await lab.until(lambda: worker.host.snapshot().running == 1)
    found = await lab.metrics(worker)
    assert found["vllm:num_requests_running"] == 1
    assert found["vllm:num_requests_waiting"] == 1
    assert 0.6 < found["vllm:kv_cache_usage_perc"] < 0.8
    for call in calls:
        await lab.run(call.task)
    found = await lab.metrics(worker)
    assert found["vllm:num_requests_running"] == found["vllm:kv_cache_usage_perc"] == 0


async def test_latencies_are_what_the_client_felt(lab: Lab) -> None:
    """At any speed: the histogram's sum is the clock time from the request to its end."""
    for speed in (1.0, 10.0):
        worker = lab.worker(speed=speed)
        start_s = lab.clock.now_s()
        await lab.post(worker, CHAT, chat(max_tokens=20, ignore_eos=True))
        felt_s = lab.clock.now_s() - start_s
        found = await lab.metrics(worker)
        assert found["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(felt_s)
        first_s = found["vllm:time_to_first_token_seconds_sum"]
        between_s = found["vllm:inter_token_latency_seconds_sum"]
        assert first_s + between_s == pytest.approx(felt_s)
        assert found["vllm:inter_token_latency_seconds_count"] == 19


async def test_cache_config_is_told(lab: Lab) -> None:
    worker = lab.worker(block_tokens=16, total_blocks=500)
    found = await lab.metrics(worker)
    (config,) = [key for key in found if "cache_config_info" in key]
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="500"' in config


async def test_counters_never_fall(lab: Lab) -> None:
    worker = lab.worker(total_blocks=96)
    calls = [lab.begin(worker, path, body) for path, body in REQUESTS * 4]
    last: dict[str, float] = {}
    await settle()
    while not all(call.task.done() for call in calls):
        lab.clock.fire_next()
        await settle()
        found = await lab.metrics(worker)
        assert all(found[key] >= value for key, value in last.items() if "_total" in key)
        last = found
    assert last["vllm:generation_tokens_total"] > 0


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.sum == 14.0
