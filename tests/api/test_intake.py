"""What the gateway changes of a request before it travels, and that it changes nothing else."""

import json
from typing import Any

import pytest

from gateway.api.auth import IDENTITY, Identity
from gateway.api.intake import Intake, SidecarMode
from gateway.api.live import Live
from gateway.core.output_length.carried import PromptReader
from gateway.core.output_length.facts import PromptFacts
from gateway.core.types import OutputFeatures, RequestId, WorkerId
from gateway.upstream.services import ClientRequest
from gateway.wire.conversation_names import tenant_hash
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Peeked
from tests.core.output_length.predictor_factories import model

MODEL = "llama"
CHAT = "/v1/chat/completions"
ALLOWED = "10.0.0.7:8000"
TEAM = Identity(name="team", scopes=frozenset({"data"}))


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


def intake(*, sidecar: bool = False, **live: Any) -> Intake:
    def offer(host_port: str) -> WorkerId | None:
        return WorkerId(f"prefiller-{host_port}") if host_port == ALLOWED else None

    mode = SidecarMode(header=b"x-prefiller-host-port", offer=offer) if sidecar else None
    return Intake(Live(**live), sidecar=mode)


def take(
    through: Intake, body: bytes, *, path: str = CHAT, headers: list[tuple[bytes, bytes]] | None = None, **scope: Any
) -> tuple[ClientRequest, Peeked]:
    taken = through.take({"path": path, "headers": headers or [], **scope}, body, RequestId("r-1"), 5.0)
    assert not isinstance(taken, ApiError), taken
    return taken


def refused(
    through: Intake, body: bytes, *, path: str = CHAT, headers: list[tuple[bytes, bytes]] | None = None
) -> ApiError:
    taken = through.take({"path": path, "headers": headers or []}, body, RequestId("r-1"), 5.0)
    assert isinstance(taken, ApiError)
    return taken


class TestPrompts:
    """Who reads prompts for output-length prediction, and under which names."""

    @staticmethod
    def _asked(**live: Any) -> tuple[Intake, list[PromptFacts]]:
        asked: list[PromptFacts] = []

        class Reader(PromptReader):
            def features(self, prompt: PromptFacts) -> OutputFeatures:
                asked.append(prompt)
                return OutputFeatures(predictor="v1", values=())

        reader = Reader(model=model(), bytes_per_token=lambda _: 4.0)
        return Intake(Live(**live), reader=lambda: reader), asked

    def test_the_reader_of_this_moment_is_asked_for_every_request(self) -> None:
        readers = [None, PromptReader(model=model(), bytes_per_token=lambda _: 4.0), None]
        through = Intake(Live(), reader=lambda: readers.pop(0))
        read = [take(through, chat())[1].facts.output_features is not None for _ in range(3)]
        assert read == [False, True, False]

    @pytest.mark.parametrize(("asked_for", "tenant"), [({IDENTITY: TEAM}, "team"), ({}, None)])
    def test_the_name_of_the_key_is_the_tenant(self, asked_for: dict[str, Any], tenant: str | None) -> None:
        through, asked = self._asked()
        take(through, chat(), **asked_for)
        assert [prompt.tenant for prompt in asked] == [tenant]

    def test_a_request_is_read_once_under_the_models_own_name(self) -> None:
        through, asked = self._asked(aliases={"gpt-4o": MODEL})
        take(through, chat(model="gpt-4o"))
        take(through, chat())
        assert [prompt.model for prompt in asked] == [MODEL, MODEL]


class TestResponses:
    """What a request goes on from, and whose that is."""

    BODY = json.dumps({"model": MODEL, "input": "hi", "previous_response_id": "resp_1"}).encode()
    PATH = "/v1/responses"

    def test_the_response_is_read_where_nobody_asks_for_conversations(self) -> None:
        _, peeked = take(intake(), self.BODY, path=self.PATH, headers=[(b"x-session-id", b"s")], **{IDENTITY: TEAM})
        said = peeked.facts.conversation
        assert said is not None
        assert (said.response_id, said.tenant, said.label) == ("resp_1", tenant_hash("team"), None)
        assert take(intake(), chat())[1].facts.conversation is None

    def test_another_tenants_response_is_none(self) -> None:
        asked: list[tuple[str, int]] = []
        hidden = True

        def hides(response_id: str, tenant: int) -> bool:
            asked.append((response_id, tenant))
            return hidden

        through = Intake(Live(), hides=hides)

        def hidden_of(body: bytes, **scope: Any) -> ApiError | None:
            return through.hidden(take(through, body, **scope)[1].facts)

        error = hidden_of(self.BODY, path=self.PATH)
        assert error is not None
        assert (error.status, error.param, error.code) == (404, "previous_response_id", "previous_response_not_found")
        assert "resp_1" in error.message
        hidden = False
        assert hidden_of(self.BODY, path=self.PATH, **{IDENTITY: TEAM}) is None
        assert hidden_of(json.dumps({"model": MODEL, "input": "hi"}).encode(), path=self.PATH) is None
        assert hidden_of(chat()) is None
        assert asked == [("resp_1", 0), ("resp_1", tenant_hash("team"))]


class TestUsage:
    @pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
    def test_a_stream_is_asked_for_the_usage_that_its_client_did_not_ask_for(self, path: str) -> None:
        body = chat(stream=True, prompt="x")
        request, _ = take(intake(), body, path=path)
        assert request.hide_usage
        assert json.loads(request.body) == {**json.loads(body), "stream_options": {"include_usage": True}}

    @pytest.mark.parametrize(
        "fields", [{}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}]
    )
    def test_any_other_body_goes_on_byte_for_byte(self, fields: dict[str, Any]) -> None:
        body = chat(**fields)
        request, _ = take(intake(), body)
        assert (request.body, request.hide_usage) == (body, False)

    def test_dialects_that_always_tell_their_usage_are_not_asked(self) -> None:
        body = chat(stream=True, max_tokens=4)
        request, _ = take(intake(), body, path="/v1/messages")
        assert (request.body, request.hide_usage) == (body, False)


class TestModels:
    def test_an_alias_becomes_its_model_and_the_asked_name_stays_known(self) -> None:
        request, peeked = take(intake(aliases={"gpt-4o": MODEL}), chat(model="gpt-4o", seed=12345678901234567890))
        assert json.loads(request.body)["model"] == MODEL
        assert b"12345678901234567890" in request.body
        assert (peeked.facts.model, peeked.raw_model) == (MODEL, "gpt-4o")

    def test_an_alias_shares_the_prefix_index_of_its_model(self) -> None:
        long = [{"role": "user", "content": "x" * 1000}]
        _, by_alias = take(intake(aliases={"gpt-4o": MODEL}), chat(model="gpt-4o", messages=long))
        _, by_name = take(intake(), chat(messages=long))
        assert by_alias.facts.block_chains == by_name.facts.block_chains
        assert by_name.facts.block_chains[0]

    def test_a_request_without_a_model_means_the_only_one(self) -> None:
        body = json.dumps({"prompt": "hello"}).encode()
        request, peeked = take(intake(default_model=lambda: MODEL), body, path="/tokenize")
        assert (request.body, peeked.facts.model) == (body, MODEL)

    def test_without_a_default_it_is_the_clients_mistake(self) -> None:
        error = refused(intake(), json.dumps({"prompt": "hello"}).encode(), path="/tokenize")
        assert (error.status, error.param) == (400, "model")


class TestKeys:
    OWN = ((b"authorization", b"Bearer tg-secret"), (b"x-api-key", b"tg-secret"), (b"x-trace", b"1"))

    def test_the_clients_authorization_goes_on_where_the_gateway_has_no_keys(self) -> None:
        request, _ = take(intake(), chat(), headers=list(self.OWN))
        assert request.headers == list(self.OWN)
        assert request.own_headers == ()

    def test_a_key_of_the_gateways_own_never_reaches_a_worker(self) -> None:
        identity = Identity(name="team", scopes=frozenset({"data"}))
        request, _ = take(intake(), chat(), headers=list(self.OWN), **{IDENTITY: identity})
        assert request.headers == [(b"x-trace", b"1")]

    def test_the_workers_key_is_the_gateways_own_header(self) -> None:
        request, _ = take(intake(upstream_authorization=b"Bearer up"), chat())
        assert request.own_headers == ((b"authorization", b"Bearer up"),)


class TestSidecar:
    NAMED = (b"x-prefiller-host-port", ALLOWED.encode())

    def test_the_named_prefill_worker_is_the_only_one_and_the_header_is_taken_off(self) -> None:
        request, peeked = take(intake(sidecar=True), chat(), headers=[self.NAMED, (b"x-trace", b"1")])
        assert peeked.facts.prefill_from == (f"prefiller-{ALLOWED}",)
        assert request.headers == [(b"x-trace", b"1")]

    def test_the_first_of_a_list_counts(self) -> None:
        _, peeked = take(intake(sidecar=True), chat(), headers=[(self.NAMED[0], self.NAMED[1] + b", 10.0.0.8:1")])
        assert peeked.facts.prefill_from == (f"prefiller-{ALLOWED}",)

    def test_without_the_header_nobody_prefills_remotely(self) -> None:
        assert take(intake(sidecar=True), chat())[1].facts.prefill_from == ()

    @pytest.mark.parametrize("named", [b"169.254.169.254:80", b"", b"10.0.0.7:8000@evil:1", b"\xff"])
    def test_a_prefill_worker_off_the_list_is_forbidden(self, named: bytes) -> None:
        error = refused(intake(sidecar=True), chat(), headers=[(b"x-prefiller-host-port", named)])
        assert (error.status, error.code) == (403, "prefiller_not_allowed")

    def test_a_gateway_that_is_no_sidecar_leaves_the_choice_to_the_router(self) -> None:
        request, peeked = take(intake(), chat(), headers=[self.NAMED])
        assert peeked.facts.prefill_from is None
        assert request.headers == [self.NAMED]


def test_bad_bodies_are_refused_in_every_dialect() -> None:
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"):
        assert refused(intake(), b"{bad", path=path).status == 400
