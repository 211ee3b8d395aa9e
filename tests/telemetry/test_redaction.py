"""Neither credentials nor prompts pass through the logs."""

from typing import Any

import pytest

from gateway.telemetry.redaction import REDACTED, redact

SECRET = "s3cr3t-value"  # not a credential of anything


def redacted(**event: Any) -> dict[str, Any]:
    return dict(redact(None, "info", event))


@pytest.mark.parametrize(
    "name", ["authorization", "Authorization", "Proxy-Authorization", "x-api-key", "api_key", "Set-Cookie"]
)
def test_values_under_a_credentials_name_go(name: str) -> None:
    assert redacted(**{name: SECRET}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["prompt", "messages", "content", "input", "body", "tools"])
def test_what_the_client_wrote_goes_whatever_its_shape(name: str) -> None:
    for written in ("tell me", [{"role": "user", "content": "tell me"}], b"tell me", [1, 2, 3]):
        assert redacted(**{name: written}) == {name: REDACTED}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {SECRET}", "accept": "*/*"},
        [("x-api-key", SECRET), ("accept", "*/*")],
        [(b"Cookie", SECRET.encode()), (b"accept", b"*/*")],
        {"deep": [{"down": {b"Authorization": SECRET.encode()}}], "accept": "*/*"},
    ],
)
def test_headers_of_any_shape_lose_their_credentials_only(headers: object) -> None:
    shown = repr(redacted(headers=headers))
    assert SECRET not in shown
    assert REDACTED in shown
    assert "*/*" in shown


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (f"sent Bearer {SECRET} to decode-0", f"sent Bearer {REDACTED} to decode-0"),
        (f"authorization: bearer   {SECRET}", f"authorization: bearer   {REDACTED}"),
        (f"Basic {SECRET}==", f"Basic {REDACTED}"),
        (f"GET http://w/v1?api_key={SECRET}&n=1", f"GET http://w/v1?api_key={REDACTED}&n=1"),
        (f"redis://user:{SECRET}@cache:6379/0", f"redis://{REDACTED}@cache:6379/0"),
        ("key sk-abcdef0123456789 is unknown", f"key {REDACTED} is unknown"),
    ],
)
def test_credentials_inside_text_go(text: str, cleaned: str) -> None:
    assert redacted(error=text) == {"error": cleaned}


@pytest.mark.parametrize(
    "harmless",
    [
        "request.finished",
        "http://decode-0:8000/v1/chat/completions?n=1",
        "task-12345678",
        "write to ops@example.org",
        3.5,
        None,
        True,
        {"input_tokens": 12, "models": ["llama"]},
    ],
)
def test_everything_else_stays_as_it_is(harmless: object) -> None:
    assert redacted(value=harmless) == {"value": harmless}
