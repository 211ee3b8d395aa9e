"""Chat and text completions, in the shapes of `loadtest.worker.answers` and `loadtest.worker.streams`."""

from loadtest.worker.answers import Json, Usage, whole_answer
from loadtest.worker.dialects.base import EventWriter, Job
from loadtest.worker.errors import ApiError
from loadtest.worker.streams import stream_writer


class _Completions:
    takes_request_id = True

    def __init__(self, id_prefix: str) -> None:
        self.id_prefix = id_prefix

    def whole(self, job: Job, usage: Usage, kv_transfer_params: Json | None) -> bytes:
        return whole_answer(job.request, job.plans, job.envelope, usage, kv_transfer_params)

    def writer(self, job: Job) -> EventWriter:
        return stream_writer(job.request, job.plans, job.envelope)

    def refusal(self, error: ApiError) -> bytes:
        return error.body()


CHAT = _Completions("chatcmpl-")
COMPLETION = _Completions("cmpl-")
