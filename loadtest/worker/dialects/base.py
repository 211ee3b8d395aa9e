"""What an API must be able to say. It is given the plans of an answer; the engine is none of its business."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadtest.worker.answers import Envelope, Json, Usage
from loadtest.worker.errors import ApiError
from loadtest.worker.generation import Delta, Plan
from loadtest.worker.requests import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request and the answer that it will get."""

    request: GenerationRequest
    plans: Sequence[Plan]
    envelope: Envelope


class EventWriter(Protocol):
    """Writes a streamed answer; every method gives bytes to send, which may be none."""

    def begin(self) -> bytes:
        """What is said before the engine has begun."""

    def events(self, delta: Delta, *, last: bool) -> bytes:
        """Some tokens; `last` is set where no sequence has more to say."""

    def end(self, usage: Usage) -> bytes:
        """The end of an answer that is complete."""

    def failure(self, error: ApiError) -> bytes:
        """The end of one that is not."""


class Dialect(Protocol):
    """One API's way of answering one request."""

    @property
    def id_prefix(self) -> str:
        """What the answer's id begins with."""

    @property
    def takes_request_id(self) -> bool:
        """Whether the id goes on with the request's own, where it has one."""

    def whole(self, job: Job, usage: Usage, kv_transfer_params: Json | None) -> bytes:
        """The answer as one JSON document."""

    def writer(self, job: Job) -> EventWriter:
        """A writer for the answer as a stream."""

    def refusal(self, error: ApiError) -> bytes:
        """A refusal's JSON body."""


def named_event(name: str, fields: Json) -> bytes:
    """A server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(fields))
