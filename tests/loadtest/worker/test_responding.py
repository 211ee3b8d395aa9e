"""The responses that an emulated worker keeps, and how it speaks of them."""

from typing import Any

import pytest

from loadtest.worker.errors import ApiError
from loadtest.worker.responding import KeptResponse, ResponseStore
from tests.loadtest.worker.worker_lab import MODEL, Emulated, Lab, Reply

RESPONSES = "/v1/responses"
NOT_FOUND = {
    "message": "Response with id 'resp_x' not found.",
    "type": "invalid_request_error",
    "param": "response_id",
    "code": 404,
}


@pytest.fixture
def worker(lab: Lab) -> Emulated:
    return lab.worker()


async def respond(lab: Lab, worker: Emulated, words: object = "hi", **fields: Any) -> Reply:
    body = {"model": MODEL, "input": words, "max_output_tokens": 9, "ignore_eos": True, **fields}
    return await lab.post(worker, RESPONSES, body)


async def test_a_response_is_kept_as_it_was_answered(lab: Lab, worker: Emulated) -> None:
    whole = (await respond(lab, worker)).json()
    assert (await lab.get(worker, f"{RESPONSES}/{whole['id']}")).json() == whole
    other = (await respond(lab, worker)).json()
    assert other["id"] != whole["id"]


async def test_the_clients_request_id_is_no_name_of_a_response(lab: Lab, worker: Emulated) -> None:
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 1}
    reply = await lab.post(worker, RESPONSES, body, x_request_id="mine/1")
    assert reply.json()["id"].startswith("resp_0")


@pytest.mark.parametrize("store", [False, None])
async def test_one_that_is_not_to_be_kept_is_not(lab: Lab, worker: Emulated, store: bool | None) -> None:
    whole = (await respond(lab, worker, store=store)).json()
    assert (await lab.get(worker, f"{RESPONSES}/{whole['id']}")).status == 404


async def test_unknown_ids_are_refused_in_vllms_words(lab: Lab, worker: Emulated) -> None:
    gone = await lab.get(worker, f"{RESPONSES}/resp_x")
    cancelled = await lab.post(worker, f"{RESPONSES}/resp_x/cancel")
    previous = await respond(lab, worker, previous_response_id="resp_x")
    for reply in (gone, cancelled, previous):
        assert (reply.status, reply.json()["error"]) == (404, NOT_FOUND)
    # The model is looked at first.
    assert (await respond(lab, worker, previous_response_id="resp_x", model="no")).json()["error"]["param"] == "model"


async def test_a_finished_response_cannot_be_cancelled(lab: Lab, worker: Emulated) -> None:
    whole = (await respond(lab, worker)).json()
    reply = await lab.post(worker, f"{RESPONSES}/{whole['id']}/cancel")
    assert (reply.status, reply.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")


async def test_there_are_no_other_routes(lab: Lab, worker: Emulated) -> None:
    whole = (await respond(lab, worker)).json()
    path = f"{RESPONSES}/{whole['id']}"
    deleted = await lab.run(lab.begin(worker, path, method="DELETE").task)
    assert (deleted.status, deleted.headers["allow"], deleted.json()) == (405, "GET", {"detail": "Method Not Allowed"})
    for other in (f"{path}/input_items", f"{RESPONSES}/", f"{path}/cancel/more"):
        assert (await lab.get(worker, other)).json() == {"detail": "Not Found"}


async def test_a_turn_has_all_that_came_before_but_the_instructions(lab: Lab, worker: Emulated) -> None:
    first = (await respond(lab, worker, "one " * 40, instructions="be brief " * 40)).json()
    second = (await respond(lab, worker, "two", previous_response_id=first["id"])).json()
    assert second["previous_response_id"] == first["id"]
    answer = first["output"][0]["content"][0]["text"]
    history = [{"role": "user", "content": "one " * 40}, {"role": "assistant", "content": answer}]
    direct = (await respond(lab, worker, [*history, {"role": "user", "content": "two"}])).json()
    assert second["usage"]["input_tokens"] == direct["usage"]["input_tokens"]
    third = (await respond(lab, worker, "three", previous_response_id=second["id"])).json()
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] + 9


async def test_a_streamed_response_is_kept_whole(lab: Lab, worker: Emulated) -> None:
    reply = await respond(lab, worker, stream=True)
    assert reply.status == 200
    response_id = reply.body.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
    kept = (await lab.get(worker, f"{RESPONSES}/{response_id}")).json()
    assert (kept["id"], kept["usage"]["output_tokens"]) == (response_id, 9)
    assert (await follow(lab, worker, response_id)).status == 400


async def test_a_stream_in_the_background_can_be_read_again(lab: Lab, worker: Emulated) -> None:
    reply = await respond(lab, worker, stream=True, background=True)
    response_id = reply.body.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
    again = await follow(lab, worker, response_id)
    assert (again.body, again.headers["content-type"]) == (reply.body, "text/event-stream; charset=utf-8")
    rest = await follow(lab, worker, response_id, b"&starting_after=2")
    assert reply.body.endswith(rest.body)
    assert rest.body.split(b"\n\n")[0].count(b'"sequence_number":3') == 1


async def follow(lab: Lab, worker: Emulated, response_id: str, more: bytes = b"") -> Reply:
    exchange = lab.begin(worker, f"{RESPONSES}/{response_id}", method="GET", query=b"stream=true" + more)
    return await lab.run(exchange.task)


def test_the_ones_kept_longest_give_way() -> None:
    store = ResponseStore(2)
    for number in range(3):
        store.keep(f"resp_{number}", KeptResponse(response={"id": number}, messages=()))
    assert len(store) == 2
    assert store.get("resp_1").response == {"id": 1}
    with pytest.raises(ApiError):
        store.get("resp_0")
