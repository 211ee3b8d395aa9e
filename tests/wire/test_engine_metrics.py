import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import WorkerSample
from gateway.wire.engine_metrics import parse_sample

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{hash_block_size="64",block_size="16",engine="0",num_cpu_blocks="7",num_gpu_blocks="1000"} 1.0
"""


def test_a_vllm_page() -> None:
    assert parse_sample(VLLM, 5.0) == WorkerSample(
        at_s=5.0, running=3, waiting=2, kv_used_ratio=0.25, kv_block_tokens=16, kv_total_blocks=1000
    )
    assert parse_sample(VLLM.encode(), 5.0) == parse_sample(VLLM, 5.0)


def test_requests_add_up_over_engines_and_the_fullest_cache_counts() -> None:
    page = VLLM + VLLM.replace('engine="0"', 'engine="1"').replace("0.25", "0.75")
    assert parse_sample(page, 0.0) == WorkerSample(
        at_s=0.0, running=6, waiting=4, kv_used_ratio=0.75, kv_block_tokens=16, kv_total_blocks=2000
    )


def test_an_older_vllm() -> None:
    page = 'vllm:num_requests_running{model_name="m"} 1\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
    assert parse_sample(page, 0.0) == WorkerSample(at_s=0.0, running=1, kv_used_ratio=0.5)


def test_the_new_name_goes_before_the_old_one() -> None:
    assert parse_sample("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n", 0.0).kv_used_ratio == 0.25


def test_an_sglang_page() -> None:
    page = (
        'sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0\n'
        'sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0\n'
        'sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.4\n'
    )
    assert parse_sample(page, 0.0) == WorkerSample(at_s=0.0, running=4, waiting=1, kv_used_ratio=0.4)


def test_the_tensor_parallel_ranks_of_one_scheduler_count_once() -> None:
    line = 'sglang:num_running_reqs{{dp_rank="{}",model_name="m",tp_rank="{}"}} {}\n'
    page = "".join(line.format(dp, tp, 4 + dp) for dp in range(2) for tp in range(4))
    assert parse_sample(page, 0.0).running == 9


def test_a_tensorrt_llm_page() -> None:
    page = "trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.125\n"
    assert parse_sample(page, 0.0) == WorkerSample(at_s=0.0, running=2, waiting=1, kv_used_ratio=0.125)


def test_the_total_suffix_may_or_may_not_be_there() -> None:
    assert parse_sample('vllm:num_requests_running_total{engine="0"} 7', 0.0).running == 7


def test_what_the_page_lacks_is_none() -> None:
    assert parse_sample("", 0.0) == WorkerSample(at_s=0.0)
    assert parse_sample("# TYPE vllm:num_requests_running gauge\n", 0.0) == WorkerSample(at_s=0.0)
    assert parse_sample("my:vllm:num_requests_running 5\n", 0.0) == WorkerSample(at_s=0.0)


def test_zero_is_not_none() -> None:
    assert parse_sample("vllm:num_requests_waiting 0.0\n", 0.0).waiting == 0


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "many", ""])
def test_an_absurd_value_is_none(value: str) -> None:
    assert parse_sample(f"vllm:num_requests_running {value}\n", 0.0).running is None


def test_a_bad_value_of_one_engine_leaves_the_others() -> None:
    page = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2\n'
    assert parse_sample(page, 0.0).running == 2


@pytest.mark.parametrize("labels", ['block_size="None",num_gpu_blocks="None"', 'block_size="0",num_gpu_blocks="0"', ""])
def test_a_cache_geometry_that_is_not_known_yet(labels: str) -> None:
    sample = parse_sample(f"vllm:cache_config_info{{{labels}}} 1.0\n", 0.0)
    assert (sample.kv_block_tokens, sample.kv_total_blocks) == (None, None)


def test_blocks_are_unknown_while_one_engine_has_not_said() -> None:
    line = 'vllm:cache_config_info{{block_size="16",engine="{}",num_gpu_blocks="{}"}} 1.0\n'
    assert parse_sample(line.format(0, 1000) + line.format(1, None), 0.0).kv_total_blocks is None


def test_labels_may_hold_anything() -> None:
    page = r'vllm:num_requests_running{model_name="a} 9 \" b{\\",engine="0"} 3 1700000000000' + "\n"
    assert parse_sample(page, 0.0).running == 3


def test_windows_line_ends_and_a_missing_last_one() -> None:
    assert parse_sample("vllm:num_requests_running 3\r\nvllm:num_requests_waiting\t4", 0.0) == WorkerSample(
        at_s=0.0, running=3, waiting=4
    )


@given(st.text() | st.text(alphabet='vllm:num_requests_running{}="\\ 0123\n').map(lambda text: VLLM + text))
def test_never_raises(page: str) -> None:
    assert parse_sample(page, 1.0).at_s == 1.0
