"""Requests in every dialect, and what was read of their conversation."""

import json
from typing import Any

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.types import Endpoint, RequestFacts, RequestId
from gateway.wire.conversation_names import ConversationNames, ConversationReader
from gateway.wire.dialects import ROUTES
from gateway.wire.peeked import Peeked

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
READER = ConversationReader(names=ConversationNames())
BOUNDARY = (b"content-type", b"multipart/form-data; boundary=x")
UPLOAD = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "q"}]},
    COMPLETION: {"prompt": "p"},
    MESSAGES: {"messages": []},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "q"}]},
}


def header(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode(), value.encode("latin-1")


def facts(
    path: str, *headers: tuple[bytes, bytes], reader: ConversationReader | None = READER, **fields: Any
) -> RequestFacts:
    if ROUTES[path].endpoint is Endpoint.AUDIO:
        body = UPLOAD
    else:
        body = json.dumps({"model": "m", **MINIMAL.get(path, {}), **fields}).encode()
    seen = ROUTES[path].peek(body, request_id=RequestId("r"), headers=[BOUNDARY, *headers], conversation=reader)
    assert isinstance(seen, Peeked), seen
    return seen.facts


def said(
    path: str, *headers: tuple[bytes, bytes], reader: ConversationReader = READER, **fields: Any
) -> ConversationFacts:
    conversation = facts(path, *headers, reader=reader, **fields).conversation
    assert conversation is not None
    return conversation
