"""The hot routes over ASGI: bodies in, answers out, and clients that leave, dawdle or send nonsense."""

import asyncio
import json
from collections.abc import Awaitable

import pytest

from gateway.api.hot import HIGH_WATER_BYTES, HotRoutes
from gateway.api.intake import Intake
from gateway.api.live import Live
from gateway.core.types import OutcomeKind, RequestFacts
from gateway.upstream.errors import ErrorKind
from gateway.wire.conversation_names import ConversationNames
from tests.api.asgi_client import AsgiClient, idle, settle
from tests.upstream.journey_lab import DONE, JSON_HEAD, MODEL, Lab, chat_body, chunk, whole_answer

MAX_BODY_BYTES = 2000
PLAIN = chat_body(stream_options={"include_usage": True})


class Door:
    """The hot routes in front of a lab."""

    def __init__(self, lab: Lab | None = None) -> None:
        self.lab = lab or Lab.local()
        self.live = Live(conversation_names=ConversationNames())
        self.app = HotRoutes(self.lab.services, Intake(self.live), max_body_bytes=MAX_BODY_BYTES)

    def client(self, **scope: object) -> AsgiClient:
        self.lab.requests += 1
        return AsgiClient(self.app, **scope)  # type: ignore[arg-type] # passed on as it comes

    async def begun(self, body: bytes | None = None, **scope: object) -> AsgiClient:
        """A request that has reached its worker; by default one whose stream passes unedited."""
        legs = len(self.lab.pool.legs)
        client = self.client(**scope).start(PLAIN if body is None else body)
        await settle(lambda: len(self.lab.pool.legs) > legs)
        return client


@pytest.fixture
async def door() -> Door:
    return Door()


async def test_a_stream_is_sent_as_it_comes(door: Door) -> None:
    client = await door.begun()
    door.lab.leg.head()
    await settle(lambda: client.sent)
    assert client.status == 200
    door.lab.leg.send(chunk("a"))
    await settle(lambda: client.body)
    assert client.body == chunk("a")
    assert not client.whole
    door.lab.leg.send(DONE).end()
    await client.task
    assert client.body == chunk("a") + DONE
    assert client.whole
    assert [message["type"] for message in client.sent].count("http.response.start") == 1
    door.lab.check_settled()


async def test_a_whole_answer_keeps_its_length(door: Door) -> None:
    client = await door.begun(chat_body(stream=False))
    body = whole_answer()
    door.lab.leg.answer(200, body, [*JSON_HEAD, (b"content-length", b"%d" % len(body))])
    await client.task
    assert client.header(b"content-length") == b"%d" % len(body)
    assert client.body == body


async def test_a_body_in_pieces_is_one_body(door: Door) -> None:
    body = PLAIN
    client = door.client().start(body[:10], b"", body[10:11], body[11:])
    await settle(lambda: door.lab.pool.legs)
    assert door.lab.leg.body == body
    door.lab.leg.stream(DONE)
    await client.task


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_target_passes_as_the_client_wrote_it(door: Door, path: str) -> None:
    prompt = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    client = await door.begun(
        json.dumps({"model": MODEL, **prompt}).encode(),
        path=path,
        raw_path=path.encode().replace(b"/v1", b"/%761"),
        query=b"trace=1&x=%20",
    )
    assert door.lab.leg.target == path.encode().replace(b"/v1", b"/%761") + b"?trace=1&x=%20"
    door.lab.leg.stream(DONE)
    await client.task


async def test_a_server_that_tells_no_raw_path_has_told_the_path(door: Door) -> None:
    client = await door.begun()
    assert door.lab.leg.target == b"/v1/chat/completions"
    door.lab.leg.stream(DONE)
    await client.task


async def test_the_session_header_reaches_the_core(door: Door) -> None:
    client = await door.begun(headers=[(b"x-session-id", b"abc")])
    assert door.lab.core.decisions[0].pinned
    door.lab.leg.stream(DONE)
    await client.task


# -- bodies that are refused -----------------------------------------------------------------------------------------


async def test_a_body_of_exactly_the_limit_is_taken(door: Door) -> None:
    body = chat_body(prompt_chars=MAX_BODY_BYTES - len(chat_body(prompt_chars=0)))
    assert len(body) == MAX_BODY_BYTES
    client = await door.begun(body, headers=[(b"content-length", b"%d" % MAX_BODY_BYTES)])
    door.lab.leg.stream(DONE)
    await client.task
    assert client.status == 200


async def test_a_body_declared_too_large_is_413_before_it_is_read(door: Door) -> None:
    client = door.client(headers=[(b"content-length", b"%d" % (MAX_BODY_BYTES + 1))]).start()
    await client.task
    assert client.status == 413
    assert json.loads(client.body)["error"]["code"] == "request_too_large"
    door.lab.check_settled()


async def test_a_chunked_body_is_counted_as_it_comes(door: Door) -> None:
    client = door.client().start(b"x" * 1500, b"x" * 501, more=True)
    await client.task
    assert client.status == 413
    assert client.header(b"content-length") == b"%d" % len(client.body)
    assert door.lab.outcome().kind is OutcomeKind.CLIENT_ERROR
    assert door.lab.outcome().status == 413
    door.lab.check_settled()


@pytest.mark.parametrize("declared", [b"5", b"many", b"-1", b""])
async def test_a_lying_content_length_is_no_way_around_the_limit(door: Door, declared: bytes) -> None:
    client = door.client(headers=[(b"content-length", declared)]).start(b"x" * (MAX_BODY_BYTES + 1))
    await client.task
    assert client.status == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"   ", b"{bad", b"[]", b'"text"', b'{"model":"llama"}', b'{"messages":[]}', b"[" * 1500, b"\xff{}"],
)
async def test_a_body_that_cannot_be_read_is_400_in_openais_shape_with_a_record(door: Door, body: bytes) -> None:
    client = door.client(headers=[(b"x-request-id", b"mine")]).start(body)
    await client.task
    assert client.status == 400
    error = json.loads(client.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert client.header(b"content-type") == b"application/json"
    assert client.header(b"x-request-id") == b"mine"
    ((routed, outcome, request_id, model),) = door.lab.records.kept
    assert (routed, request_id, model) == (None, "mine", None)
    assert (outcome.kind, outcome.status) == (OutcomeKind.CLIENT_ERROR, 400)
    assert door.lab.count("requests_total", model="other", outcome="client_error", path="none") == 1
    door.lab.check_settled()


async def test_an_objective_that_is_no_number_is_400_by_its_headers_name(door: Door) -> None:
    client = door.client(headers=[(b"x-slo-ttft-ms", b"soon")]).start(chat_body())
    await client.task
    assert client.status == 400
    assert json.loads(client.body)["error"]["param"] == "x-slo-ttft-ms"


async def test_an_unknown_model_is_404(door: Door) -> None:
    client = door.client().start(b'{"model":"nobody","messages":[{"role":"user","content":"hi"}]}')
    await client.task
    assert client.status == 404
    assert client.whole
    door.lab.check_settled()


# -- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [b"a", b"req-1/2:3+4=5@6_7.8", b"x" * 128])
async def test_a_safe_request_id_is_kept(door: Door, given: bytes) -> None:
    client = door.client(headers=[(b"x-request-id", given)]).start(b"{bad")
    await client.task
    assert client.header(b"x-request-id") == given


@pytest.mark.parametrize("given", [b"", b"a b", b"a\tb", b"x" * 129, "ä".encode(), b"a\r\nb", b'"', b"{{7*7}}"])
async def test_any_other_request_id_is_replaced(door: Door, given: bytes) -> None:
    client = door.client(headers=[(b"x-request-id", given)]).start(b"{bad")
    await client.task
    made = client.header(b"x-request-id")
    assert made is not None
    assert made != given
    assert len(made) == 32
    assert made.isalnum()


async def test_of_several_request_ids_the_first_safe_one_counts(door: Door) -> None:
    client = door.client(headers=[(b"x-request-id", b"a b"), (b"x-request-id", b"good")]).start(b"{bad")
    await client.task
    assert client.header(b"x-request-id") == b"good"


async def test_requests_without_an_id_get_different_ones(door: Door) -> None:
    made = {b"other"}
    for _ in range(2):
        client = door.client(headers=[(b"x-other-id", b"other")]).start(b"{bad")
        await client.task
        made.add(client.header(b"x-request-id") or b"")
    assert len(made - {b"", b"other"}) == 2


# -- clients that leave ----------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_inside_its_body_gets_a_record_and_no_answer(door: Door) -> None:
    client = door.client().start(b'{"model":', more=True)
    await idle()
    door.lab.clock.advance(1.5)
    client.leave()
    await client.task
    assert client.sent == []
    ((routed, outcome, _, model),) = door.lab.records.kept
    assert (routed, model) == (None, None)
    assert (outcome.kind, outcome.status, outcome.duration_s) == (OutcomeKind.CANCELLED, 499, 1.5)
    door.lab.check_settled()


async def test_a_client_that_leaves_before_the_head_stops_the_worker(door: Door) -> None:
    client = await door.begun()
    client.leave()
    await client.task
    assert client.sent == []
    assert door.lab.leg.aborted
    assert door.lab.outcome().status == 499
    door.lab.check_settled()


async def test_a_client_that_leaves_inside_the_stream_stops_the_worker(door: Door) -> None:
    client = await door.begun()
    door.lab.leg.head().send(chunk("a"))
    await settle(lambda: client.body)
    client.leave()
    await client.task
    assert door.lab.leg.aborted
    assert not client.whole
    assert door.lab.outcome().kind is OutcomeKind.CANCELLED
    door.lab.check_settled()


async def test_what_a_client_still_sends_is_not_taken_for_its_leaving(door: Door) -> None:
    client = await door.begun()
    client.give(b"more", b"bytes")
    await idle()
    door.lab.leg.stream(chunk("a"), DONE)
    await client.task
    assert client.body == chunk("a") + DONE
    assert door.lab.outcome().kind is OutcomeKind.OK


async def test_a_cancelled_handler_stops_the_worker(door: Door) -> None:
    client = await door.begun()
    door.lab.leg.head().send(chunk("a"))
    await settle(lambda: client.body)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert door.lab.leg.aborted
    assert door.lab.outcome().kind is OutcomeKind.CANCELLED
    door.lab.check_settled()


async def test_a_server_that_cannot_send_any_more_stops_the_worker(door: Door) -> None:
    client = await door.begun()
    client.send_error = OSError("gone")
    door.lab.leg.head()
    with pytest.raises(OSError, match="gone"):
        await client.task
    assert door.lab.leg.aborted
    door.lab.check_settled()


async def test_an_answer_that_cannot_be_completed_is_never_ended(door: Door) -> None:
    client = await door.begun(chat_body(stream=False))
    door.lab.leg.head(200, JSON_HEAD).send(b'{"choices"').fail(ErrorKind.TRUNCATED)
    await client.task
    assert client.body == b'{"choices"'
    assert not client.whole
    door.lab.check_settled()


async def test_nothing_runs_on_when_a_request_is_over(door: Door) -> None:
    client = await door.begun()
    door.lab.leg.stream(DONE)
    await client.task
    await idle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- clients that read slowly ----------------------------------------------------------------------------------------


async def test_a_slow_client_pauses_its_worker_and_a_quick_one_resumes_it(door: Door) -> None:
    client = await door.begun()
    client.stop_reading()
    door.lab.leg.head().send(b"x" * HIGH_WATER_BYTES)
    await idle()
    assert not door.lab.leg.paused
    door.lab.leg.send(b"y")
    assert door.lab.leg.paused
    await idle()
    assert door.lab.leg.paused
    client.read(3)
    await settle(lambda: not door.lab.leg.paused)
    assert client.body == b"x" * HIGH_WATER_BYTES + b"y"
    client.read(3)
    door.lab.leg.send(b"\n\n", DONE).end()
    await client.task
    door.lab.check_settled()


async def test_a_worker_stays_paused_while_too_much_waits(door: Door) -> None:
    client = await door.begun()
    client.stop_reading()
    door.lab.leg.head()
    await idle()
    door.lab.leg.send(b"x" * HIGH_WATER_BYTES, b"y")
    assert door.lab.leg.paused
    client.read(1)
    await idle()
    door.lab.leg.send(b"z" * (HIGH_WATER_BYTES + 1))
    client.read(2)
    await idle()
    assert door.lab.leg.paused
    client.read(1)
    await settle(lambda: not door.lab.leg.paused)
    client.leave()
    await client.task
    door.lab.check_settled()


async def test_a_slow_client_gets_the_whole_of_an_answer_that_ended_meanwhile(door: Door) -> None:
    client = await door.begun()
    client.stop_reading()
    door.lab.leg.head()
    await idle()
    door.lab.leg.send(chunk("a"), DONE).end()
    assert door.lab.outcome().kind is OutcomeKind.OK
    client.read(4)
    await client.task
    assert client.body == chunk("a") + DONE
    assert client.whole


async def test_a_paused_client_that_leaves_stops_its_worker(door: Door) -> None:
    client = await door.begun()
    client.stop_reading()
    door.lab.leg.head().send(b"x" * (HIGH_WATER_BYTES + 1))
    await idle()
    client.leave()
    await settle(lambda: door.lab.leg.aborted)
    client.read(2)
    await client.task
    door.lab.check_settled()


async def test_what_has_to_be_waited_for_is_waited_for_before_a_request_is_routed(door: Door) -> None:
    lab, answered, asked = door.lab, asyncio.Event(), []

    def before(facts: RequestFacts) -> Awaitable[object] | None:
        asked.append(facts.model)
        return answered.wait() if len(asked) == 1 else None

    door.app = HotRoutes(lab.services, Intake(door.live), max_body_bytes=MAX_BODY_BYTES, before=before)
    first = door.client().start(PLAIN)
    await idle()
    assert (asked, len(lab.pool.legs), len(lab.router.ledger)) == ([MODEL], 0, 0)
    await door.begun()  # another one has nothing to wait for
    answered.set()
    await settle(lambda: len(lab.pool.legs) == 2)
    for leg in lab.pool.legs:
        leg.head()
        leg.send(DONE).end()
    await first.task
    assert first.status == 200
    await settle(lambda: not len(lab.router.ledger))
