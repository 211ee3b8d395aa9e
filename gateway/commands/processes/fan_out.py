"""The admin application of several processes: one listener for all of them.

The rule of this module: who may call is for the processes to say, which get every header. A change goes to all, one
change at a time, and what the worst of them answers is the answer; what moves something that they share goes to one,
and the others follow. A view comes from one, or is put together from what all show.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from gateway.api.asgi import ClientDisconnected, Receive, Scope, Send, read_body, send_json
from gateway.commands.processes.changes import Changes
from gateway.commands.processes.identity import replicated
from gateway.commands.processes.siblings import Answer, Call, Sibling, Siblings
from gateway.commands.processes.views import decisions_of, workers_of
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError

MAX_BODY_BYTES: Final = 2**20
STORE_MOVES: Final = frozenset({"/policy/activate", "/policy/rollback", "/policy/off"})
"""All processes follow one store: it is moved once."""
RELOAD: Final = "/settings/reload"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOBODY: Final = api_errors.unavailable("No process of the gateway answers.", code="no_process")


class FanOut:
    """Calls all processes for one client.

    Args:
        siblings: those that are there.
        processes: how many there should be.
        reloaded: is called after the settings were read anew.
    """

    def __init__(self, siblings: Siblings, processes: int, *, reloaded: Callable[[], None]) -> None:
        self.changes = Changes()
        self.one_at_a_time = asyncio.Lock()
        """Held during a change: whoever takes part later must take it over first."""
        self.reloads = 0
        """How often the settings were read anew."""
        self._siblings = siblings
        self._processes = processes
        self._reloaded = reloaded
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
        except ClientDisconnected:
            return
        answer = body if isinstance(body, ApiError) else await self.answer(_call(scope, body))
        if isinstance(answer, ApiError):
            await send_json(send, answer.status, api_errors.response_headers(answer), api_errors.body(answer))
        else:
            await send_json(send, answer.status, [*answer.headers], answer.body)

    async def answer(self, call: Call) -> Answer | ApiError:
        """What all processes answer, as one."""
        if call.method in READS:
            return await self._view(call)
        async with self.one_at_a_time:
            if call.path in STORE_MOVES:
                return await self._move(call)
            return await self._change(call)

    async def reload(self) -> None:
        """Let all processes read the settings anew, as SIGHUP asks."""
        async with self.one_at_a_time:
            asked = [*self._siblings]
            if not asked:
                self.reloads += 1  # for those that are on their way
            answers = await asyncio.gather(*(sibling.order("POST", "/reload") for sibling in asked))
            # Each process logs itself why it refuses.
            self._note_reload([answer for answer in answers if answer is not None])

    # -- views ---------------------------------------------------------------------------------------------------------

    async def _view(self, call: Call) -> Answer | ApiError:
        if call.path == "/workers":
            return await self._put_together(call, workers_of)
        if call.path == "/decisions":
            return await self._put_together(call, lambda bodies: decisions_of(bodies, call.target))
        if call.path.startswith("/decisions/"):
            return _best(await self._ask_all(call))
        for sibling in self._siblings:
            answer = await sibling.ask(call)
            if answer is not None:
                return answer
        return NOBODY

    async def _put_together(self, call: Call, view: Callable[[Sequence[bytes]], bytes]) -> Answer | ApiError:
        answers = await self._ask_all(call)
        worst = _worst(answers)
        if isinstance(worst, ApiError) or worst.status != 200 or call.method != "GET":
            return worst
        return Answer(status=200, headers=worst.headers, body=view([answer.body for answer in answers]))

    # -- changes -------------------------------------------------------------------------------------------------------

    async def _move(self, call: Call) -> Answer | ApiError:
        asked = [*self._siblings]
        if not asked:
            return NOBODY
        answer: Answer | None = await asked[0].ask(call)
        if answer is None:
            return _silent(asked[:1])
        if answer.is_well:
            await asyncio.gather(*(other.order("POST", "/follow") for other in asked[1:]))
        return answer

    async def _change(self, call: Call) -> Answer | ApiError:
        if (call.method, call.path) == ("PUT", "/policy"):
            call = _with_replicas(call, self._processes)
        asked = [*self._siblings]
        found = await asyncio.gather(*(sibling.ask(call) for sibling in asked))
        answers = [answer for answer in found if answer is not None]
        well = [answer for answer in answers if answer.is_well]
        if call.path == RELOAD:
            self._note_reload(answers)
        elif well:
            self.changes.note(call.method, call.path, call.body)
        # One that has died meanwhile will be told as it begins anew.
        silent = [
            sibling
            for sibling, answer in zip(asked, found, strict=True)
            if answer is None and sibling in self._siblings
        ]
        return _silent(silent) if silent else _worst(answers)

    def _note_reload(self, answers: Sequence[Answer]) -> None:
        well = [answer for answer in answers if answer.is_well]
        if not well:
            return
        self.reloads += 1
        self.changes.reloaded(msgspec.json.decode(well[0].body, type=dict[str, Any]))
        if len(well) == len(answers):
            self._reloaded()
        else:
            self._log.error("processes.reloaded_in_part", reloaded=len(well), refused=len(answers) - len(well))

    async def _ask_all(self, call: Call) -> list[Answer]:
        answers = await asyncio.gather(*(sibling.ask(call) for sibling in self._siblings))
        return [answer for answer in answers if answer is not None]


def _call(scope: Scope, body: bytes) -> Call:
    query = scope["query_string"]
    target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
    return Call(method=scope["method"], path=scope["path"], target=target, headers=scope["headers"], body=body)


def _with_replicas(call: Call, processes: int) -> Call:
    """The same, for processes that are replicas of each other; what is no routing section is theirs to refuse."""
    try:
        routing = msgspec.json.decode(call.body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return call
    body = msgspec.json.encode(routing | replicated(routing, processes))
    return Call(method=call.method, path=call.path, target=call.target, headers=call.headers, body=body)


def _worst(answers: Sequence[Answer]) -> Answer | ApiError:
    return max(answers, key=lambda answer: answer.status, default=NOBODY)


def _best(answers: Sequence[Answer]) -> Answer | ApiError:
    return min(answers, key=lambda answer: answer.status, default=NOBODY)


def _silent(silent: Sequence[Sibling]) -> ApiError:
    numbers = ", ".join(str(sibling.number) for sibling in silent)
    message = f"Not all processes have answered in time, so some may not have made the change: {numbers}."
    return api_errors.unavailable(message, code="process_silent")
