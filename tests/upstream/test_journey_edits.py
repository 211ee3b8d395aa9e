"""What a client is told about usage: hidden where it did not ask, and the prefill worker's cached tokens."""

import json
from typing import Any

import pytest

from gateway.core.types import Endpoint, OutcomeKind, Path
from gateway.upstream.errors import ErrorKind
from gateway.wire.dialects import ROUTES
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    KV_PARAMS,
    SSE_HEAD,
    Lab,
    chat_body,
    chunk,
    usage,
    usage_chunk,
    whole_answer,
)


def prefilled(cached: int | None) -> bytes:
    """A prefill answer whose usage tells so many cached tokens."""
    told: dict[str, Any] = usage(100, 1) | {
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached}
    }
    return json.dumps({"choices": [], "usage": told})[:-1].encode() + b', "kv_transfer_params": ' + KV_PARAMS + b"}"


class TestHiddenUsage:
    def test_the_chunk_that_only_the_gateway_asked_for_is_taken_out_and_counted(self) -> None:
        lab = Lab.local()
        call = lab.call(hide_usage=True)
        lab.leg.head(200, SSE_HEAD).send(chunk("a"), chunk("b"), usage_chunk(100, 2, 64), DONE).end()
        assert call.sink.body == chunk("a") + chunk("b") + DONE
        outcome = lab.outcome()
        assert (outcome.input_tokens, outcome.cached_tokens, outcome.output_tokens) == (100, 64, 2)
        lab.check_settled()

    def test_a_length_that_no_longer_holds_is_not_passed_on(self) -> None:
        lab = Lab.local()
        call = lab.call(hide_usage=True)
        lab.leg.head(200, [*SSE_HEAD, (b"content-length", b"999")])
        assert b"content-length" not in dict(call.sink.headers)

    def test_a_broken_stream_ends_with_an_error_event_and_without_half_an_event(self) -> None:
        lab = Lab.local()
        call = lab.call(hide_usage=True)
        lab.leg.head(200, SSE_HEAD).send(chunk("a"), b'data: {"choi').fail(ErrorKind.TRUNCATED)
        body = call.sink.body
        assert body.startswith(chunk("a") + b'data: {"error"')
        assert body.endswith(DONE)
        assert b'"error"' in body


class TestCachedTokens:
    @pytest.mark.parametrize(("prefill_says", "shown"), [(48, 48), (0, 0), (None, 0)])
    def test_a_streams_usage_tells_the_prefill_workers_count(self, prefill_says: int | None, shown: int) -> None:
        lab = Lab.on(Path.REMOTE)
        call = lab.call()
        lab.leg.head(200, JSON_HEAD).send(prefilled(prefill_says)).end()
        lab.leg.head(200, SSE_HEAD).send(chunk("a"), usage_chunk(100, 2, 100), DONE).end()
        assert call.sink.body == chunk("a") + usage_chunk(100, 2, shown) + DONE
        assert lab.outcome().cached_tokens == shown

    def test_a_whole_answers_usage_does_too_and_its_length_fits(self) -> None:
        lab = Lab.on(Path.REMOTE)
        call = lab.call(chat_body(stream=False))
        lab.leg.head(200, JSON_HEAD).send(prefilled(48)).end()
        lab.leg.head(200, [*JSON_HEAD, (b"content-length", b"1")]).send(whole_answer()).end()
        shown = json.loads(call.sink.body)
        assert shown["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
        assert {**shown, "usage": None} == {**json.loads(whole_answer()), "usage": None}
        assert dict(call.sink.headers)[b"content-length"] == b"%d" % len(call.sink.body)
        assert call.sink.status == 200
        assert (lab.outcome().kind, lab.outcome().cached_tokens) == (OutcomeKind.OK, 48)
        lab.check_settled()

    def test_the_decode_workers_own_mistakes_are_relayed_as_they_are(self) -> None:
        lab = Lab.on(Path.REMOTE)
        call = lab.call(chat_body(stream=False))
        lab.leg.head(200, JSON_HEAD).send(prefilled(48)).end()
        lab.leg.head(400, JSON_HEAD).send(b'{"error": "no"}').end()
        assert (call.sink.status, call.sink.body) == (400, b'{"error": "no"}')

    def test_a_lost_hand_off_leaves_the_decode_workers_own_count(self) -> None:
        lab = Lab.on(Path.REMOTE)
        call = lab.call(chat_body(stream=False))
        lab.leg.head(200, JSON_HEAD).send(b'{"kv_transfer_params": null, "usage": null}').end()
        lab.leg.head(200, JSON_HEAD).send(whole_answer()).end()
        assert call.sink.body == whole_answer()
        assert lab.outcome().cached_tokens == 0

    def test_a_retry_forgets_the_former_prefill_workers_count(self) -> None:
        lab = Lab.on(Path.REMOTE)
        lab.call(chat_body(stream=False))
        lab.leg.head(200, JSON_HEAD).send(prefilled(48)).end()
        lab.leg.fail(ErrorKind.CLOSED_BEFORE_HEAD)
        lab.leg.head(200, JSON_HEAD).send(prefilled(16)).end()
        lab.leg.head(200, JSON_HEAD).send(whole_answer()).end()
        assert lab.outcome().cached_tokens == 16


class TestOtherDialects:
    def test_a_failed_stream_ends_in_the_clients_own_dialect(self) -> None:
        lab = Lab.local()
        call = lab.call(dialect=ROUTES["/v1/messages"])
        lab.leg.head(200, SSE_HEAD).send(b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n').fail(
            ErrorKind.TRUNCATED
        )
        assert b'event: error\ndata: {"type":"error"' in call.sink.body
        assert b"[DONE]" not in call.sink.body

    def test_the_gateways_own_errors_are_in_the_clients_dialect(self) -> None:
        lab = Lab.local()
        peeked = lab.peek(chat_body(model="unknown"), Endpoint.CHAT)
        call = lab.call(dialect=ROUTES["/v1/messages"], peeked=peeked)
        assert call.sink.status == 404
        assert json.loads(call.sink.body)["type"] == "error"
