import pytest

from gateway.wire.errors import ApiError
from gateway.wire.slo_headers import Hints, read_hints


def test_no_headers_no_hints() -> None:
    assert read_hints([(b"host", b"gateway")]) == Hints()


def test_bounds_are_read_in_milliseconds() -> None:
    hints = read_hints([(b"x-slo-ttft-ms", b"250"), (b"x-slo-tpot-ms", b" 12.5 ")])
    assert hints == Hints(slo_ttft_s=0.25, slo_tpot_s=0.0125)


def test_llm_d_names_are_understood() -> None:
    hints = read_hints([(b"x-llm-d-slo-ttft-ms", b"500"), (b"x-llm-d-slo-tpot-ms", b"50")])
    assert hints == Hints(slo_ttft_s=0.5, slo_tpot_s=0.05)


def test_own_name_goes_before_llm_ds() -> None:
    hints = read_hints([(b"x-llm-d-slo-ttft-ms", b"500"), (b"x-slo-ttft-ms", b"100")])
    assert hints == Hints(slo_ttft_s=0.1)


@pytest.mark.parametrize("value", [b"", b"0", b"-5", b"nan", b"inf", b"1e400", b"1e-323", b"1_000", b"fast", b"\xb2"])
@pytest.mark.parametrize("name", [b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-llm-d-slo-ttft-ms", b"x-llm-d-slo-tpot-ms"])
def test_a_bound_that_is_no_positive_number_is_refused_by_name(name: bytes, value: bytes) -> None:
    error = read_hints([(name, value)])
    assert isinstance(error, ApiError)
    assert (error.status, error.param) == (400, name.decode())
    assert name.decode() in error.message


def test_a_long_bad_value_is_cut_in_the_message() -> None:
    error = read_hints([(b"x-slo-ttft-ms", b"x" * 10_000)])
    assert isinstance(error, ApiError)
    assert len(error.message) < 200


def test_a_blank_class_is_none() -> None:
    assert read_hints([(b"x-slo-class", b"  ")]) == Hints()
    assert read_hints([(b"x-slo-class", b" gold ")]) == Hints(slo_class="gold")


def test_of_a_repeated_header_the_first_value_counts() -> None:
    assert read_hints([(b"x-slo-class", b"gold"), (b"x-slo-class", b"free")]) == Hints(slo_class="gold")
