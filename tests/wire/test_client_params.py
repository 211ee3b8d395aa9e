"""Transfer parameters that a client sent itself reach no worker."""

import json
from typing import Any

import pytest

from gateway.wire.disagg.client_params import without_transfer_params

EVIL = {"remote_host": "evil"}


def stripped(**fields: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(without_transfer_params(json.dumps(fields).encode()))
    return decoded


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_they_are_taken_out_at_the_top_and_of_the_extra_arguments(name: str) -> None:
    assert stripped(model="m", **{name: EVIL}) == {"model": "m"}
    assert stripped(vllm_xargs={name: EVIL, "top_a": 0.5}, model="m") == {"vllm_xargs": {"top_a": 0.5}, "model": "m"}
    assert stripped(vllm_xargs={name: "text"}) == {"vllm_xargs": {}}


def test_all_at_once() -> None:
    fields = {"kv_transfer_params": EVIL, "ec_transfer_params": EVIL}
    assert stripped(**fields, vllm_xargs=fields, n=1) == {"vllm_xargs": {}, "n": 1}


@pytest.mark.parametrize(
    "body",
    [
        rb'{"\u006bv_transfer_params":{"a":1},"model":"m"}',
        rb'{"\u006b\u0076\u005f\u0074ransfer\u005fparams":{"a":1},"model":"m"}',
        rb'{"vllm_xargs":{"ec_tr\u0061nsfer_params":{"a":1}},"model":"m"}',
        b'{"kv_transfer_params":null,"kv_transfer_params":{"a":1},"model":"m"}',
        b'{"model":"m","ec_transfer_params":0}',
    ],
)
def test_however_they_are_written(body: bytes) -> None:
    left = json.loads(without_transfer_params(body))
    assert {key: value for key, value in left.items() if value != {}} == {"model": "m"}


@pytest.mark.parametrize(
    "body",
    [
        b'{ "model" : "m" }',
        b'{ "model" : "transfer_params" }',
        rb'{ "model" : "\u006b" }',
        b'{ "kv_transfer_params" : null }',
        b'{ "vllm_xargs" : { "transfer_params" : 1 } }',
        b'{ "vllm_xargs" : "kv_transfer_params" }',
        b'{ "messages" : [ { "kv_transfer_params" : 1 } ] }',
    ],
)
def test_a_body_that_holds_none_keeps_its_bytes(body: bytes) -> None:
    assert without_transfer_params(body) is body


def test_a_value_that_stays_keeps_its_bytes() -> None:
    body = b'{"x":1e400,"vllm_xargs":{"f":1.50,"kv_transfer_params":1},"n":12345678901234567890}'
    assert without_transfer_params(body) == b'{"x":1e400,"vllm_xargs":{"f":1.50},"n":12345678901234567890}'


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        without_transfer_params(b'{"kv_transfer_params":' + b"[" * 5000)
