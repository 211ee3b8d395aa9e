"""What each dialect reads of a conversation's name, its caller and its end; and that nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.types import RequestId
from gateway.wire.conversation_names import MAX_VALUE_CHARS, ConversationNames, ConversationReader
from gateway.wire.dialects import ROUTES
from gateway.wire.journal import decode_call, encode_call
from gateway.wire.peeked import Headers, Peeked
from tests.wire.conversation_lab import CHAT, COMPLETION, MESSAGES, READER, RESPONSES, facts, header, said


def tenant_of(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def in_headers(sent: Headers, **names: Any) -> ConversationFacts:
    return ConversationReader(names=ConversationNames(**names)).facts(sent)


# --- the name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READER.names.headers)
@pytest.mark.parametrize("path", ROUTES)
def test_a_header_names_the_conversation_in_every_dialect(path: str, name: str) -> None:
    assert said(path, header(name, " abc ")).label == f"{name}=abc"


def test_the_headers_are_asked_in_their_order_and_before_the_body() -> None:
    names = READER.names.headers
    headers = [header(name, name.upper()) for name in reversed(names)]
    for at, name in enumerate(names):
        left = headers[: len(names) - at]
        assert said(CHAT, *left, user="u", prompt_cache_key="k").label == f"{name}={name.upper()}"
    assert said(CHAT, user="u", prompt_cache_key="k").label == "prompt_cache_key=k"


def test_the_order_is_the_settings_own() -> None:
    headers = [header("x-session-id", "s"), header("x-conv", "c")]
    assert in_headers(headers, headers=("X-Conv", "x-session-id")).label == "x-conv=c"
    reader = ConversationReader(names=ConversationNames(fields=("user", "prompt_cache_key")))
    assert said(CHAT, reader=reader, user="u", prompt_cache_key="k").label == "user=u"


def test_a_blank_header_names_nothing_and_of_a_repeated_one_the_first_counts() -> None:
    headers = [header("x-session-id", " "), header("session-id", "one"), header("session-id", "two")]
    assert in_headers(headers).label == "session-id=one"
    assert in_headers([header("x-session-id", ""), header("x-session-id", "late")]).label is None


@pytest.mark.parametrize(
    ("path", "fields", "label"),
    [
        (CHAT, {"user": "u", "prompt_cache_key": "k"}, "prompt_cache_key=k"),
        (CHAT, {"user": "u"}, "user=u"),
        (CHAT, {"user": " ü "}, "user=ü"),
        (CHAT, {"metadata": {"user_id": "u"}}, None),
        (COMPLETION, {"user": "u", "prompt_cache_key": "k"}, "prompt_cache_key=k"),
        (COMPLETION, {"user": "u"}, "user=u"),
        (RESPONSES, {"user": "u", "prompt_cache_key": "k"}, "prompt_cache_key=k"),
        (RESPONSES, {"user": "u"}, "user=u"),
        (MESSAGES, {"metadata": {"other": 1, "user_id": "u_session_s"}}, "metadata.user_id=u_session_s"),
        (MESSAGES, {"user": "u", "prompt_cache_key": "k"}, None),
        ("/v1/embeddings", {"input": "i", "user": "u"}, None),
        ("/v1/messages/count_tokens", {"metadata": {"user_id": "u"}}, None),
    ],
)
def test_the_body_names_it_in_its_dialects_own_way(path: str, fields: dict[str, Any], label: str | None) -> None:
    assert said(path, **fields).label == label


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], ["u"], {}, {"user_id": "u"}, "", "  ", {"user_id": None}])
@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSES])
def test_what_is_no_text_names_nothing(path: str, value: object) -> None:
    fields: dict[str, Any] = {"user": value, "prompt_cache_key": value, "previous_response_id": value}
    seen = said(path, **fields)
    assert (seen.label, seen.response_id) == (None, None)
    assert said(path, **{**fields, "user": "u"}).label == "user=u"


@pytest.mark.parametrize(
    "metadata", [None, 5, "u", [], ["user_id"], {}, {"user_id": None}, {"user_id": 5}, {"user_id": ""}, {"user": "u"}]
)
def test_metadata_of_another_shape_names_nothing(metadata: object) -> None:
    assert said(MESSAGES, metadata=metadata).label is None


@pytest.mark.parametrize(
    "raw", [b'"\\ud83d"', b'"\\q"', b"[" * 900 + b"]" * 900, b'{"user_id":"\\q"}', b'{"user_id":tru}']
)
def test_what_the_worker_will_stumble_over_is_not_for_the_name_to_refuse(raw: bytes) -> None:
    for path, name in ((CHAT, "user"), (MESSAGES, "metadata")):
        body = b'{"model":"m","messages":[{"role":"user"}],"%b":%b}' % (name.encode(), raw)
        plain, read = (
            ROUTES[path].peek(body, request_id=RequestId("r"), conversation=reader) for reader in (None, READER)
        )
        if isinstance(plain, Peeked):
            assert isinstance(read, Peeked)
            assert read.facts.conversation is not None
            assert read.facts.conversation.label is None
        else:
            assert read == plain


@given(
    st.text(min_size=MAX_VALUE_CHARS - 3, max_size=MAX_VALUE_CHARS + 3), st.sampled_from(["user", "prompt_cache_key"])
)
def test_a_long_value_is_replaced_by_its_hash(value: str, field: str) -> None:
    kept = value.strip()
    if len(kept) > MAX_VALUE_CHARS:
        kept = xxhash.xxh3_64_hexdigest(kept.encode())
    sent: dict[str, Any] = {field: value}
    label = said(CHAT, **sent).label
    assert label == (f"{field}={kept}" if kept else None)
    assert len(label or "") <= len(field) + 1 + MAX_VALUE_CHARS


def test_a_label_never_grows_with_what_is_sent() -> None:
    headers = [header(name, "x" * 10_000) for name in READER.names.headers]
    names = READER.names
    agents = [header(name, "y" * 10_000) for name in (*names.agent_headers, *names.parent_agent_headers)]
    for sent in (headers, [*headers, *agents]):
        seen = in_headers([*sent, header("x-parent-session-id", "z" * 10_000)])
        assert all(len(label or "") < 300 for label in (seen.label, seen.parent))
        assert seen.label is not None
    one, other = (in_headers([header("x-session-id", "x" * size)]).label for size in (300, 301))
    assert one != other


ALL_HEADERS = [
    *READER.names.headers,
    *READER.names.parent_headers,
    *READER.names.agent_headers,
    *READER.names.parent_agent_headers,
    *READER.names.final_headers,
]


@given(st.lists(st.tuples(st.sampled_from(ALL_HEADERS).map(str.encode), st.binary(max_size=300))))
def test_any_header_can_be_read(headers: list[tuple[bytes, bytes]]) -> None:
    seen = in_headers(headers)
    assert seen.label is None or "=" in seen.label
    assert seen.parent is None or (seen.label is not None and seen.parent != seen.label)


def test_equal_values_of_different_names_do_not_meet() -> None:
    labels = {said(CHAT, header(name, "abc")).label for name in READER.names.headers}
    labels |= {said(CHAT, user="abc").label, said(CHAT, prompt_cache_key="abc").label}
    labels |= {said(MESSAGES, metadata={"user_id": "abc"}).label}
    labels |= {said(CHAT, header("x-session-id", "abc"), header("x-claude-code-agent-id", "abc")).label}
    assert len(labels) == len(READER.names.headers) + 4


def test_without_names_there_are_no_labels_but_the_rest_is_read() -> None:
    reader = ConversationReader(names=ConversationNames(headers=(), fields=()), tenant="acme")
    headers = [header("x-session-id", "s"), header("x-claude-code-agent-id", "a"), header("x-parent-session-id", "p")]
    seen = said(CHAT, *headers, header("x-dynamo-session-final", "1"), reader=reader, user="u")
    assert (seen.label, seen.parent, seen.is_final, seen.tenant) == (None, None, True, tenant_of("acme"))
    assert seen.turns


def test_a_name_that_no_header_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="x-sitzüng"):
        ConversationNames(parent_headers=("x-ok", "x-sitzüng"))


# --- the caller, the end, the rest ---------------------------------------------------------------------------------


def test_a_parent_is_labelled_as_it_is_in_its_own_requests() -> None:
    for own, parent in (("x-session-id", "x-parent-session-id"), ("x-dynamo-session-id", "x-dynamo-parent-session-id")):
        main = said(CHAT, header(own, "p"))
        called = said(CHAT, header(own, "c"), header(parent, "p"))
        assert (main.label, main.parent) == (f"{own}=p", None)
        assert (called.label, called.parent) == (f"{own}=c", main.label)


def test_a_parent_is_none_of_a_conversation_without_a_header_of_its_own() -> None:
    assert said(CHAT, header("x-parent-session-id", "p")).parent is None
    seen = said(CHAT, header("x-parent-session-id", "p"), user="u")
    assert (seen.label, seen.parent) == ("user=u", None)


def test_nobody_is_its_own_parent() -> None:
    assert in_headers([header("x-session-id", "s"), header("x-parent-session-id", "s")]).parent is None
    agent = [header("x-claude-code-agent-id", "a"), header("x-claude-code-parent-agent-id", "a")]
    assert in_headers([header("x-session-id", "s"), *agent]).parent is None


def test_a_sub_agent_has_a_conversation_of_its_own_under_its_session() -> None:
    session = header("x-claude-code-session-id", "s")
    agent, deeper = header("x-claude-code-agent-id", "a"), header("x-claude-code-agent-id", "b")
    main, one = said(MESSAGES, session), said(MESSAGES, session, agent)
    two = said(MESSAGES, session, deeper, header("x-claude-code-parent-agent-id", "a"))
    assert (one.label, one.parent) == ("x-claude-code-agent-id=s/a", main.label)
    assert (two.label, two.parent) == ("x-claude-code-agent-id=s/b", one.label)
    assert said(MESSAGES, header("x-claude-code-session-id", "t"), agent).label != one.label


def test_a_sub_agent_of_a_session_that_only_the_body_names() -> None:
    seen = said(MESSAGES, header("x-claude-code-agent-id", "a"), metadata={"user_id": "u"})
    assert (seen.label, seen.parent) == ("x-claude-code-agent-id=u/a", "metadata.user_id=u")
    assert said(MESSAGES, header("x-claude-code-agent-id", "a")).label is None


@pytest.mark.parametrize(
    ("value", "is_final"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False), ("", False)]
)
def test_a_conversations_last_turn(value: str, is_final: bool) -> None:
    assert said(CHAT, header("x-dynamo-session-final", value)).is_final is is_final
    assert said(CHAT).is_final is False


def test_the_response_that_a_request_goes_on_from() -> None:
    assert said(RESPONSES, previous_response_id="resp_1").response_id == "resp_1"
    assert said(RESPONSES, previous_response_id="r" * (MAX_VALUE_CHARS + 1)).response_id is None
    assert said(RESPONSES).response_id is None
    assert said(CHAT, previous_response_id="resp_1").response_id is None


@pytest.mark.parametrize("path", ROUTES)
def test_the_tenant_is_the_callers(path: str) -> None:
    assert said(path, reader=replace(READER, tenant="acme")).tenant == tenant_of("acme")
    assert said(path, reader=replace(READER, tenant="other")).tenant not in (0, tenant_of("acme"))
    assert said(path).tenant == 0


# --- nothing else changes ------------------------------------------------------------------------------------------

SENT = st.fixed_dictionaries(
    {},
    optional={
        "user": st.text(max_size=5) | st.none() | st.integers(),
        "prompt_cache_key": st.text(max_size=5) | st.lists(st.none(), max_size=1),
        "metadata": st.dictionaries(st.just("user_id"), st.text(max_size=5) | st.integers()) | st.text(max_size=2),
        "previous_response_id": st.text(max_size=5) | st.booleans(),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", ""]), "content": st.text(max_size=300)}
            ),
            min_size=1,
            max_size=5,
        ),
    },
)


@given(path=st.sampled_from(sorted(ROUTES)), fields=SENT, named=st.booleans())
def test_reading_the_conversation_changes_no_other_fact(path: str, fields: dict[str, Any], named: bool) -> None:
    headers = [header("x-session-id", "s")] if named else []
    plain, read = (facts(path, *headers, reader=reader, **fields) for reader in (None, READER))
    assert plain.conversation is None
    assert read.conversation is not None
    assert replace(read, conversation=None) == plain


def test_the_facts_go_through_the_journal_and_hold_no_text() -> None:
    read = facts(CHAT, header("x-session-id", "s"), messages=[{"role": "user", "content": "a secret"}])
    assert read.conversation is not None
    assert read.conversation.turns
    line = encode_call("submit", 1.0, read)
    assert decode_call(line).payload == read
    assert b"secret" not in line
