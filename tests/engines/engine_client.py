"""Requests as a client makes them, to the gateway or to a worker, and the client's own books of them.

The rule of this module: an answer is kept as it came; whatever a request ended with is a `Reply`, also no answer.
"""

import itertools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtest.client.sse import SseSplitter

PATIENCE_S = 240.0
"""For one request: a first one of its kind takes a cold engine on shared cores more than a minute."""
CHAT = "chat/completions"
COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a request ended with."""

    status: int
    """0 where no answer began."""
    headers: httpx.Headers
    body: bytes
    duration_s: float
    broken: str | None = None
    """The name of the failure where the answer did not come whole."""

    @property
    def path(self) -> str | None:
        """The path that the gateway says it took."""
        found = self.headers.get("x-tidegate-path")
        return None if found is None else str(found)

    @property
    def is_stream(self) -> bool:
        """Whether it came as server-sent events."""
        return "text/event-stream" in self.headers.get("content-type", "")

    @property
    def events(self) -> list[Any]:
        """The stream's events, `[DONE]` as text."""
        events = SseSplitter().feed(self.body)
        return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The JSON objects of the answer: one, or the stream's; none where it is no JSON."""
        found = self.events if self.is_stream else [_json(self.body)]
        return [answer for answer in found if isinstance(answer, dict)]

    @property
    def choices(self) -> list[dict[str, Any]]:
        """All choices of all answers."""
        return [choice for answer in self.answers for choice in answer.get("choices", ())]

    @property
    def text(self) -> str:
        """The text of choice 0, whole or put together."""
        return "".join(_text(choice) for choice in self.choices if choice["index"] == 0)

    @property
    def usage(self) -> dict[str, Any] | None:
        """The token counts, where there are any."""
        found = [answer["usage"] for answer in self.answers if answer.get("usage")]
        return found[-1] if found else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that the answer is, or that its stream ends with, in OpenAI's shape."""
        found = [answer["error"] for answer in self.answers if isinstance(answer.get("error"), dict)]
        return found[-1] if found else None

    @property
    def is_whole(self) -> bool:
        """A 200 that came to its proper end."""
        if self.status != 200 or self.broken is not None or self.error is not None:
            return False
        return not self.is_stream or self.events[-1:] == ["[DONE]"]

    @property
    def is_honest_error(self) -> bool:
        """A failure that the client can tell: 502, 503 or 504 with a body, or an error event and `[DONE]`."""
        if self.broken is not None or self.error is None or not self.error.get("message"):
            return False
        if self.is_stream:
            return self.events[-1:] == ["[DONE]"]
        return self.status in (502, 503, 504)

    @property
    def outcome(self) -> str:
        """The name that the gateway should count it under."""
        if self.is_whole:
            return "ok"
        if self.status in (404, 503) and "x-tidegate-decision-id" not in self.headers:
            return "refused"
        if 400 <= self.status < 500:
            return "client_error"
        return "timeout" if self.status == 504 else "upstream_error"


def post(client: httpx.Client, url: str, content: bytes, headers: dict[str, str] | None = None) -> Reply:
    """One POST of a JSON body; never raises."""
    began_s = time.monotonic()
    status, kept, pieces, broken = 0, httpx.Headers(), bytearray(), None
    sent = {"content-type": "application/json", **(headers or {})}
    try:
        with client.stream("POST", url, content=content, headers=sent) as response:
            status, kept = response.status_code, response.headers
            for piece in response.iter_bytes():
                pieces += piece
    except httpx.HTTPError as error:
        broken = type(error).__name__
    duration_s = time.monotonic() - began_s
    return Reply(status=status, headers=kept, body=bytes(pieces), duration_s=duration_s, broken=broken)


def scrape(client: httpx.Client, url: str, name: str, **labels: str) -> float:
    """The sum of the samples with this name and these labels on a process's /metrics."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(client.get(f"{url}/metrics").text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def until(condition: Callable[[], object], what: str, *, patience_s: float = 60.0) -> None:
    """Ask again until it holds."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {patience_s:g} s: {what}"
        time.sleep(0.25)


class Books:
    """What a client asked the gateway and got, to hold against what the gateway counted."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.request_ids: set[str] = set()
        self._lock = threading.Lock()

    def enter(self, request_id: str, reply: Reply) -> None:
        """One request has ended."""
        usage = reply.usage if reply.is_whole else None
        with self._lock:
            self.request_ids.add(request_id)
            self.outcomes[reply.outcome] += 1
            if usage is not None:
                self.tokens.update(input=usage["prompt_tokens"], output=usage["completion_tokens"])

    def add_tokens(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Tokens of an answer that did not say how many they were."""
        with self._lock:
            self.tokens.update(input=prompt_tokens, output=completion_tokens)


class GatewayClient:
    """Asks one running gateway, with books."""

    def __init__(self, client: httpx.Client, url: str, log: Path, model: str) -> None:
        self.client = client
        self.url = url
        self.log = log
        self.model = model
        self.books = Books()
        self._run = uuid.uuid4().hex[:8]
        self._ids = itertools.count(1)

    def ask(self, route: str, fields: dict[str, Any]) -> Reply:
        """One request."""
        return self.send(route, encode(self.model, fields))

    def send(self, route: str, content: bytes) -> Reply:
        """One request of these bytes."""
        request_id = f"engines-{self._run}-{next(self._ids)}"
        reply = post(self.client, f"{self.url}/v1/{route}", content, {"x-request-id": request_id})
        self.books.enter(request_id, reply)
        return reply

    def metric(self, name: str, **labels: str) -> float:
        """A value of the gateway's own /metrics."""
        return scrape(self.client, self.url, name, **labels)


def encode(model: str, fields: dict[str, Any]) -> bytes:
    """A request body, greedy and short unless the fields say otherwise."""
    return json.dumps({"model": model, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **fields}).encode()


def story(facts: int = 14) -> str:
    """A prompt of a few hundred tokens that no worker has seen before."""
    told = " ".join(f"Fact {number}: city {number} lies {number * 7 % 50} km away." for number in range(facts))
    return f"[{uuid.uuid4().hex[:8]}] {told} What is the capital of France?"


def prompt_fields(route: str, text: str) -> dict[str, Any]:
    """The prompt as the route wants it."""
    return {"messages": [{"role": "user", "content": text}]} if route == CHAT else {"prompt": text}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")
