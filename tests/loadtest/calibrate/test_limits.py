import pytest

from loadtest.calibrate.limits import CalibrationError, metric_sum, read_cache_config, read_model, server_url

LABELS = 'block_size="32",engine="0",num_gpu_blocks="256"'


def page(labels: str) -> str:
    return f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"


def test_block_size_and_blocks_come_from_the_cache_config() -> None:
    cache = read_cache_config(page(LABELS))
    assert (cache.block_tokens, cache.total_blocks, cache.kv_bytes_per_token) == (32, 256, None)


@pytest.mark.parametrize(("override", "bytes_per_token"), [("None", 131_072), ("256", None)])
def test_memory_tells_bytes_per_token_unless_the_blocks_were_set_by_hand(
    override: str, bytes_per_token: int | None
) -> None:
    labels = f'{LABELS},kv_cache_memory_bytes="1073741824",num_gpu_blocks_override="{override}"'
    assert read_cache_config(page(labels)).kv_bytes_per_token == bytes_per_token


@pytest.mark.parametrize("text", ["", page('block_size="None",num_gpu_blocks="1"')])
def test_a_page_that_tells_no_cache_is_refused(text: str) -> None:
    with pytest.raises(CalibrationError, match="cache_config_info"):
        read_cache_config(text)


def test_the_first_model_is_taken_or_the_wanted_one() -> None:
    body = b'{"data":[{"id":"a","max_model_len":2048},{"id":"b"}]}'
    assert read_model(body, None) == ("a", 2048)
    assert read_model(body, "b") == ("b", None)


@pytest.mark.parametrize("body", [b'{"data":[]}', b'{"data":[{"id":"a"}]}', b"<html>"])
def test_a_model_that_is_not_listed_is_refused(body: bytes) -> None:
    with pytest.raises(CalibrationError, match="/v1/models"):
        read_model(body, "z")


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_urls_may_end_in_v1(url: str) -> None:
    assert server_url(url) == "http://h:1"


def test_series_are_summed_and_absence_is_not_zero() -> None:
    text = '# TYPE a gauge\na{engine="0"} 1.0\na{engine="1"} 2.0\n'
    assert metric_sum(text, "a") == 3.0
    assert metric_sum(text, "b") is None
