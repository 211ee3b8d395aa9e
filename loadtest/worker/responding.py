"""The Responses API's routes, and the responses that a worker keeps.

The rule of this module: a response is kept whole, in this worker's memory alone, and another one that goes on from it
begins with its conversation. As in vLLM 0.32 (with VLLM_ENABLE_RESPONSES_API_STORE) there is no route that deletes one
or lists its input, and only a stream that was asked for in the background can be read again; unlike there, the ones
kept longest give way to new ones. An answer in the background is made while its client waits.
"""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from loadtest.worker import bodies
from loadtest.worker.answers import Json
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.bodies import Message
from loadtest.worker.dialects import responses
from loadtest.worker.errors import ApiError
from loadtest.worker.requests import GenerationRequest, from_chat
from loadtest.worker.serving import Serving

MAX_KEPT = 10_000
ITEM_PATH = "/v1/responses/{}"
CANCEL_PATH = "/v1/responses/{}/cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """One response and what led to it."""

    response: Json
    messages: tuple[Message, ...]
    """Its conversation without instructions, the answer included."""
    events: tuple[bytes, ...] = ()
    """Those of a stream in the background, in their order."""


class ResponseStore:
    """What is kept, by id.

    Args:
        capacity: how many; beyond it the ones kept longest are forgotten.
    """

    def __init__(self, capacity: int = MAX_KEPT) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response_id: str, kept: KeptResponse) -> None:
        """Remember a response."""
        self._kept[response_id] = kept
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def get(self, response_id: str) -> KeptResponse:
        """A response; raises ApiError with status 404 for one that is not kept."""
        kept = self._kept.get(response_id)
        if kept is None:
            message = f"Response with id '{response_id}' not found."
            raise ApiError(404, message, kind="invalid_request_error", param="response_id")
        return kept


class ResponseRoutes:
    """POST /v1/responses, GET and cancel by id."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._store = ResponseStore()

    def routes(self) -> Routes:
        """Every path of the API."""
        return {
            "/v1/responses": {"POST": self._respond},
            ITEM_PATH: {"GET": self._retrieve},
            CANCEL_PATH: {"POST": self._cancel},
        }

    async def _respond(self, call: HttpCall) -> None:
        body = bodies.decode(responses.RESPONSES, await call.json_body())
        dialect = responses.ResponsesDialect(body)

        def begin() -> GenerationRequest:
            self._serving.check_model(body.model)
            before = () if body.previous_response_id is None else self._store.get(body.previous_response_id).messages
            chat = responses.as_chat(body, before)
            if body.store:
                said = tuple(message for message in chat.messages if message.role != "system")
                dialect.on_whole = lambda response, answer, events: self._store.keep(
                    str(response["id"]), KeptResponse(response=response, messages=(*said, answer), events=events)
                )
            return from_chat(chat)

        await self._serving.answer(call, begin, dialect)

    async def _retrieve(self, call: HttpCall) -> None:
        response_id = _id_of(call)
        kept = self._store.get(response_id)
        if call.query("stream") not in {"true", "1"}:
            await call.reply(200, msgspec.json.encode(kept.response))
            return
        if not kept.events:
            raise ApiError.bad_request(f"Unknown response_id: {response_id}", param="response_id", value=response_id)
        after = call.query("starting_after")
        await call.start_stream()
        for event in kept.events[0 if after is None else int(after) + 1 :]:
            await call.write(event)
        await call.end()

    async def _cancel(self, call: HttpCall) -> None:
        self._store.get(_id_of(call))
        message = "Cannot cancel a synchronous response."
        raise ApiError(400, message, kind="invalid_request_error", param="response_id")


def _id_of(call: HttpCall) -> str:
    return call.path.split("/")[3]
