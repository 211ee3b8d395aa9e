"""The routes of stored responses over ASGI: who is asked, and who may know."""

import json

import pytest

from gateway.api.asgi import Scope
from gateway.api.auth import IDENTITY, Identity
from gateway.api.intake import Intake
from gateway.api.live import Live
from gateway.api.responses import MAX_ASKED, StoredResponses, Whereabouts, stored_route
from gateway.core.types import OutcomeKind, WorkerId
from gateway.wire.conversation_names import tenant_hash
from tests.api.asgi_client import AsgiClient, settle
from tests.upstream.journey_lab import JSON_HEAD, SSE_HEAD, Lab

KEPT = b'{"id":"resp_1"}'
MAX_BODY_BYTES = 100


class Door:
    """The routes in front of a lab; `homes` are of (id, tenant's name)."""

    def __init__(self, *, decode: int = 3, tenants: int = 0) -> None:
        self.lab = Lab(prefill=0, decode=decode)
        self.homes: dict[tuple[str, int], WorkerId] = {}
        self.tenants = tenants
        whereabouts = Whereabouts(
            home=lambda response_id, tenant: self.homes.get((response_id, tenant)),
            decoders=lambda: [WorkerId(f"d{number}") for number in range(decode)],
            has_tenants=lambda: self.tenants > 1,
        )
        intake = Intake(Live(), hides=whereabouts.is_hidden)
        self.app = StoredResponses(self.lab.services, intake, whereabouts, max_body_bytes=MAX_BODY_BYTES)

    def keep(self, response_id: str, worker: str, *, tenant: str = "") -> None:
        self.homes[response_id, tenant_hash(tenant)] = WorkerId(worker)

    async def ask(
        self, path: str, *, method: str = "GET", caller: str | None = None, body: bytes = b"", **more: bytes
    ) -> AsgiClient:
        """A request that has reached a worker, or has its answer."""

        async def app(scope: Scope, receive: object, send: object) -> None:
            if caller is not None:
                scope[IDENTITY] = Identity(name=caller, scopes=frozenset({"data"}))
            await self.app(scope, receive, send)  # type: ignore[arg-type]

        legs = len(self.lab.pool.legs)
        client = AsgiClient(app, path, method=method, headers=[(b"authorization", b"Bearer k")], **more).start(body)
        await settle(lambda: len(self.lab.pool.legs) > legs or client.task.done())
        return client


@pytest.mark.parametrize(
    ("path", "response_id", "methods"),
    [
        ("/v1/responses/resp_1", "resp_1", ("GET", "DELETE")),
        ("/v1/responses/resp_1/cancel", "resp_1", ("POST",)),
        ("/v1/responses/resp_1/input_items", "resp_1", ("GET",)),
        ("/v1/responses/cancel", "cancel", ("GET", "DELETE")),
    ],
)
def test_the_routes(path: str, response_id: str, methods: tuple[str, ...]) -> None:
    route = stored_route(path)
    assert route is not None
    assert (route.response_id, route.methods) == (response_id, methods)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses",
        "/v1/responses/",
        "/v1/responses/a/",
        "/v1/responses/a/b",
        "/v1/responses/a/cancel/b",
        "/v2/responses/a",
    ],
)
def test_other_paths_are_no_such_routes(path: str) -> None:
    assert stored_route(path) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_a_known_response_is_asked_of_its_worker_alone(method: str, path: str) -> None:
    door = Door()
    door.keep("resp_1", "d2")
    client = await door.ask(path, method=method, query=b"limit=2")
    leg = door.lab.leg
    assert leg.worker == "d2"
    assert leg.sent_head.startswith(f"{method} {path}?limit=2 HTTP/1.1\r\n".encode())
    leg.answer(200, KEPT)
    await client.task
    assert (client.status, client.body, client.whole) == (200, KEPT, True)
    assert len(door.lab.pool.legs) == 1
    assert door.lab.outcome().kind is OutcomeKind.OK


async def test_a_stream_is_sent_as_it_comes_and_stops_with_its_client() -> None:
    door = Door()
    door.keep("resp_1", "d1")
    client = await door.ask("/v1/responses/resp_1", query=b"stream=true")
    leg = door.lab.leg.head(200, SSE_HEAD).send(b"event: a\n\n")
    await client.answered.wait()
    assert client.body == b"event: a\n\n"
    client.leave()
    await client.task
    assert leg.aborted
    assert door.lab.outcome().kind is OutcomeKind.CANCELLED


async def test_an_unknown_one_is_looked_for_on_so_many_workers_and_no_more() -> None:
    door = Door(decode=MAX_ASKED + 2)
    client = await door.ask("/v1/responses/resp_9")
    for number in range(MAX_ASKED):
        assert door.lab.leg.worker == f"d{number}"
        door.lab.leg.answer(404, b"{}", JSON_HEAD)
    await client.task
    assert (client.status, json.loads(client.body)["error"]["code"]) == (404, "response_not_found")
    assert len(door.lab.pool.legs) == MAX_ASKED


async def test_among_several_tenants_only_ones_own_are_found() -> None:
    door = Door(tenants=2)
    door.keep("resp_1", "d2", tenant="one")
    for caller, path in (
        ("other", "/v1/responses/resp_1"),
        ("one", "/v1/responses/resp_2"),
        (None, "/v1/responses/resp_1"),
    ):
        client = await door.ask(path, caller=caller)
        assert (client.status, json.loads(client.body)["error"]["code"]) == (404, "response_not_found")
    assert not door.lab.pool.legs
    assert {outcome.status for _, outcome, _, _ in door.lab.records.kept} == {404}
    client = await door.ask("/v1/responses/resp_1", caller="one")
    assert door.lab.leg.worker == "d2"
    assert not door.lab.leg.header(b"authorization")  # the gateway's own key stays here
    door.lab.leg.answer(200, KEPT)
    await client.task
    assert client.body == KEPT


async def test_a_lone_tenants_response_is_looked_for() -> None:
    door = Door(tenants=1)
    client = await door.ask("/v1/responses/resp_1", caller="one")
    door.lab.leg.answer(200, KEPT)
    await client.task
    assert client.status == 200


@pytest.mark.parametrize("response_id", ["..", ".", "resp 1", "resp?1", "resp%2F1", "x" * 257, "résp"])
async def test_what_is_no_id_is_nobodys(response_id: str) -> None:
    door = Door()
    client = await door.ask(f"/v1/responses/{response_id}", raw_path=b"/v1/responses/x")
    assert client.status == 404
    assert len(json.loads(client.body)["error"]["message"]) < 400
    assert not door.lab.pool.legs


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/responses/resp_1", b"GET, DELETE"),
        ("HEAD", "/v1/responses/resp_1", b"GET, DELETE"),
        ("GET", "/v1/responses/resp_1/cancel", b"POST"),
        ("DELETE", "/v1/responses/resp_1/input_items", b"GET"),
    ],
)
async def test_a_route_takes_no_other_method(method: str, path: str, allow: bytes) -> None:
    client = await Door().ask(path, method=method)
    assert (client.status, client.header(b"allow")) == (405, allow)


async def test_a_body_over_the_limit_is_refused() -> None:
    door = Door()
    client = await door.ask("/v1/responses/resp_1/cancel", method="POST", body=b"x" * (MAX_BODY_BYTES + 1))
    assert client.status == 413
    assert door.lab.outcome().kind is OutcomeKind.CLIENT_ERROR


async def test_a_client_that_leaves_inside_its_body_has_a_record() -> None:
    door = Door()
    client = AsgiClient(door.app, "/v1/responses/resp_1/cancel").start(b"x", more=True)
    client.leave()
    await client.task
    assert (door.lab.outcome().kind, client.sent) == (OutcomeKind.CANCELLED, [])
