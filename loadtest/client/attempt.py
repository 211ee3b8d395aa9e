"""One request of a run: its bytes, its answer and its record.

The rule of this module: an attempt never raises for what the server did; whatever happened is in its record.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from gateway.core.types import Endpoint
from loadtest.client.answer import Answer, error_message
from loadtest.client.http import HttpClient, HttpError
from loadtest.client.options import LoadOptions
from loadtest.client.records import CANCELLED, Record
from loadtest.traces.types import TraceRequest

MAX_ERROR_BYTES = 4_096
"""Of an error's body, as much is kept."""

ROUTES = {Endpoint.CHAT: "/chat/completions", Endpoint.COMPLETIONS: "/completions"}


def request_body(options: LoadOptions, request: TraceRequest, text: str) -> bytes:
    """The JSON of a streamed request whose output has exactly the trace's length.

    `ignore_eos` is vLLM's: without it a model may stop early.
    """
    prompt: dict[str, object] = (
        {"messages": [{"role": "user", "content": text}]} if options.endpoint is Endpoint.CHAT else {"prompt": text}
    )
    return msgspec.json.encode(
        {
            **options.body_members,
            "model": options.model,
            **prompt,
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def auth_headers(api_key: str | None) -> dict[str, str]:
    """The Authorization header, where there is a key."""
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def request_headers(options: LoadOptions, request: TraceRequest, request_id: str) -> dict[str, str]:
    """The headers of one request, without those that frame it."""
    session = options.session_header is not None and request.session is not None
    return {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "x-request-id": request_id,
        **auth_headers(options.api_key),
        **({str(options.session_header): str(request.session)} if session else {}),
    }


class Attempt:
    """One request under way; `now` gives seconds since the run began. It is the sink of its own answer."""

    def __init__(self, options: LoadOptions, request: TraceRequest, now: Callable[[], float]) -> None:
        self.request = request
        self.request_id = f"{options.run_id}-{request.index}"
        self._options = options
        self._now = now
        self._scheduled_s = request.arrival_s / options.speed
        self._sent_s: float | None = None
        self._ended_s: float | None = None
        self._status: int | None = None
        self._headers: Mapping[str, str] = {}
        self._error: str | None = CANCELLED  # until it ends in another way
        self._error_body = b""
        self._answer = Answer()

    async def run(self, client: HttpClient, target: str, body: bytes) -> None:
        """Sends the request and takes its answer in, within the time allowed."""
        headers = request_headers(self._options, self.request, self.request_id)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await client.send("POST", target, self, headers=headers, body=body)
            self._error = self._answer_error()
        except TimeoutError:
            self._error = "timeout"
        except HttpError as error:
            self._error = f"{error.kind}: {error}"
        finally:
            self._ended_s = self._now()

    def on_sent(self) -> None:
        """Notes when the request left."""
        self._sent_s = self._now()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Keeps status and headers."""
        self._status, self._headers = status, headers

    def on_body(self, data: bytes) -> None:
        """Reads the stream, or keeps the start of an error."""
        if self._status == 200:
            self._answer.feed(data, self._now())
        else:
            self._error_body = (self._error_body + data)[:MAX_ERROR_BYTES]

    @property
    def failed(self) -> bool:
        """True once it has ended in any other way than well."""
        return self._error is not None

    def record(self) -> Record:
        """What is known of the request, with latencies from its scheduled time."""
        answer = self._answer
        return Record(
            request_id=self.request_id,
            index=self.request.index,
            scheduled_s=self._scheduled_s,
            sent_s=self._sent_s,
            lag_s=self._since_scheduled(self._sent_s),
            status=self._status,
            ok=self._error is None,
            error=self._error,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            ttft_s=self._since_scheduled(answer.first_content_s),
            tpot_s=answer.tpot_s,
            itl_max_s=max(answer.gaps_s, default=None),
            itl_p99_s=answer.itl_p99_s,
            itl_count=len(answer.gaps_s),
            e2e_s=self._since_scheduled(self._ended_s),
            path=self._headers.get("x-tidegate-path"),
            worker=self._headers.get("x-tidegate-worker"),
            policy=self._headers.get("x-tidegate-policy"),
            decision_id=self._headers.get("x-tidegate-decision-id"),
        )

    def _since_scheduled(self, at_s: float | None) -> float | None:
        return None if at_s is None else at_s - self._scheduled_s

    def _answer_error(self) -> str | None:
        """What was wrong with an answer that HTTP brought to its end."""
        if self._status != 200:
            return f"http_{self._status}: {error_message(self._error_body)}"
        if self._answer.error is not None:
            return f"stream_error: {self._answer.error}"
        return None if self._answer.complete else "truncated"
