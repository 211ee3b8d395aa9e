"""POST /v1/audio/transcriptions: what a recording would say, if it were words without meaning.

Only the form's fields are read. How long the speech is follows from the file's size, what is said from its bytes.
"""

import re
from dataclasses import dataclass

import msgspec
import xxhash

from loadtest.worker import requests
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.bodies import CompletionBody
from loadtest.worker.errors import ApiError
from loadtest.worker.serving import Serving

BYTES_PER_S = 32_000
"""Speech of 16 kHz in 16 bits."""
WINDOW_S = 30
WINDOW_TOKENS = 448
"""Whisper's window of sound, and the most tokens of text that it makes of one."""
_PROMPT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
_NAME = re.compile(rb'content-disposition:[^\r\n]*[; ]name="?([^";\r\n]+)', re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary="?([^";]+)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a multipart form by name, each as it was sent."""

    fields: dict[str, bytes]

    def text(self, name: str) -> str | None:
        """A field's text."""
        value = self.fields.get(name)
        return None if value is None else value.decode(errors="replace")


def read_form(content_type: str, body: bytes) -> Form:
    """Take a form apart; raises ApiError with status 400 for a body that is none."""
    boundary = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or boundary is None:
        raise ApiError.schema(kind="missing", loc="body.file", message="Field required", shown="None")
    fields = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is not None:
            fields[name[1].decode()] = value
    return Form(fields)


class TranscriptionRoutes:
    """The routes of one worker whose model hears."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> Routes:
        """Just the one."""
        return {"/v1/audio/transcriptions": {"POST": self._transcribe}}

    async def _transcribe(self, call: HttpCall) -> None:
        form = read_form(call.header(b"content-type") or "", await call.body())
        file = form.fields.get("file")
        if file is None:
            raise ApiError.schema(kind="missing", loc="body.file", message="Field required", shown="None")
        seconds = -(-len(file) // BYTES_PER_S)
        body = CompletionBody(
            model=form.text("model"),
            prompt=_PROMPT,
            max_tokens=WINDOW_TOKENS * max(1, -(-seconds // WINDOW_S)),
            seed=xxhash.xxh3_64_intdigest(file) >> 1,
        )
        job, _ = await self._serving.finish(call, requests.from_completion(body), id_prefix="transcribe-")
        plan = job.plans[0]
        text = plan.text(0, plan.output_tokens).decode().strip()
        if form.text("response_format") == "text":
            await call.reply(200, text.encode(), content_type=b"text/plain; charset=utf-8")
        else:
            answer = {"text": text, "usage": {"type": "duration", "seconds": seconds}}
            await call.reply(200, msgspec.json.encode(answer))
