import json

import pytest

from gateway.core.refusals import CODE, RETRY_AFTER_S, STATUS
from gateway.core.types import Refusal, RefusalKind, RequestId
from gateway.wire import errors


def decoded(error: errors.ApiError) -> dict[str, object]:
    document = json.loads(errors.body(error))
    assert list(document) == ["error"]
    return document["error"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.bad_request("no"), 400, "invalid_request_error", None),
        (errors.unauthorized(), 401, "invalid_request_error", "invalid_api_key"),
        (errors.model_not_found("m"), 404, "invalid_request_error", "model_not_found"),
        (errors.method_not_allowed("GET", allow=["POST"]), 405, "invalid_request_error", "method_not_allowed"),
        (errors.request_timeout("slow"), 408, "invalid_request_error", "request_timeout"),
        (errors.body_too_large(8), 413, "invalid_request_error", "request_too_large"),
        (errors.too_many_requests("many"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.client_closed_request(), 499, "invalid_request_error", "client_closed_request"),
        (errors.internal_error(), 500, "server_error", "internal_error"),
        (errors.bad_gateway("gone"), 502, "server_error", "bad_gateway"),
        (errors.unavailable("full"), 503, "server_error", "service_unavailable"),
        (errors.gateway_timeout("late"), 504, "server_error", "gateway_timeout"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, errors.ApiError) else "",
)
def test_every_error_has_openais_shape(error: errors.ApiError, status: int, kind: str, code: str | None) -> None:
    assert error.status == status
    assert decoded(error) == {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": code,
    }


def test_message_with_quotes_and_unicode_survives_encoding() -> None:
    message = 'a "quoted" é\n line'
    assert decoded(errors.bad_request(message, param="messages[0]"))["message"] == message


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    headers = dict(errors.response_headers(errors.too_many_requests("later", retry_after_s=0.2)))
    assert headers[b"retry-after"] == b"1"


def test_no_retry_after_without_a_hint() -> None:
    assert b"retry-after" not in dict(errors.response_headers(errors.bad_gateway("gone")))


def test_an_error_brings_its_own_headers() -> None:
    assert (b"allow", b"GET, POST") in errors.response_headers(errors.method_not_allowed("PUT", allow=["GET", "POST"]))
    assert (b"www-authenticate", b"Bearer") in errors.response_headers(errors.unauthorized())


def test_a_failed_stream_ends_with_an_error_event_and_done() -> None:
    first, second, rest = errors.sse_error(errors.gateway_timeout("late")).split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: "))["error"]["code"] == "gateway_timeout"
    assert (second, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize("kind", list(RefusalKind))
def test_a_refusal_takes_status_code_and_hint_from_the_core(kind: RefusalKind) -> None:
    refusal = Refusal(request_id=RequestId("r"), kind=kind, words="because")
    error = errors.from_refusal(refusal)
    assert (error.status, error.code, error.message) == (STATUS[kind], CODE[kind], "because")
    assert error.retry_after_s == RETRY_AFTER_S[kind]
    assert error.type == ("server_error" if error.status >= 500 else "invalid_request_error")


def test_only_an_unknown_model_blames_the_model_field() -> None:
    blamed = {
        kind: errors.from_refusal(Refusal(request_id=RequestId("r"), kind=kind, words="")).param for kind in RefusalKind
    }
    assert blamed == {kind: "model" if kind is RefusalKind.MODEL_NOT_FOUND else None for kind in RefusalKind}
