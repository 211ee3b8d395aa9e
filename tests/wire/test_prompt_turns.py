"""The turns of a conversation: what two requests of one conversation have in common, and what others do not."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.prompt_chain import MAX_LATE_TURNS, Message, PromptChain, chat_chain

SEED = 7
CALL = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

contents = st.text(max_size=30) | st.lists(
    st.text(max_size=30).map(lambda text: {"type": "text", "text": text}) | st.just(IMAGE), max_size=3
)
asks = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": contents})
answers = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | contents},
    optional={"tool_calls": st.just(CALL), "reasoning_content": st.text(max_size=20)},
)
messages = st.lists(asks | answers, min_size=1, max_size=8)


def chain(conversation: list[dict[str, Any]], **kwargs: Any) -> PromptChain:
    decoded = msgspec.json.decode(json.dumps(conversation), type=list[Message])
    return chat_chain(decoded, seed=SEED, with_turns=True, **kwargs)


def turns(conversation: list[dict[str, Any]], **kwargs: Any) -> tuple[int, ...]:
    return chain(conversation, **kwargs).turns


def ask(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def talk(exchanges: int) -> list[dict[str, Any]]:
    """So many questions with their answers, and one question more."""
    said = [said for i in range(exchanges) for said in (ask(f"q{i}"), answer(f"a{i}"))]
    return [*said, ask(f"q{exchanges}")]


def ends(conversation: list[dict[str, Any]]) -> list[int]:
    """The number of messages that each turn ends after."""
    roles = [message["role"] for message in conversation]
    return [
        *(at for at, pair in enumerate(pairwise(roles), 1) if pair[1] == "assistant" != pair[0]),
        len(conversation),
    ]


def test_a_turn_is_hashed_with_the_hash_before_it() -> None:
    def stream(role: str, text: str) -> bytes:
        return b"\xff" + role.encode() + b"\xfe\xfe\xfe" + text.encode() + b"\xfe"

    first = xxhash.xxh3_64_intdigest(b"\xfe[]" + stream("system", "s") + stream("user", "q"), SEED)
    second = xxhash.xxh3_64_intdigest(stream("assistant", "a") + stream("user", "r"), first)
    conversation = [{"role": "system", "content": "s"}, ask("q"), answer("a"), ask("r")]
    assert turns(conversation, preamble=[b"[]"]) == (first, second)


def test_nothing_is_hashed_unless_it_is_asked_for() -> None:
    decoded = msgspec.json.decode(json.dumps(talk(3)), type=list[Message])
    assert chat_chain(decoded, seed=SEED).turns == ()


@given(messages, st.sampled_from([16, 64, 256]))
def test_the_rest_of_the_chain_is_the_same_with_turns(conversation: list[dict[str, Any]], block_bytes: int) -> None:
    decoded = msgspec.json.decode(json.dumps(conversation), type=list[Message])
    plain = chat_chain(decoded, seed=SEED, preamble=[b"[1]"], block_bytes=block_bytes)
    read = chain(conversation, preamble=[b"[1]"], block_bytes=block_bytes)
    assert (read.hashes, read.text_bytes, read.media_parts) == (plain.hashes, plain.text_bytes, plain.media_parts)


def test_without_messages_there_is_no_turn() -> None:
    assert turns([], preamble=[b"[{}]"]) == ()


@pytest.mark.parametrize("opening", [[answer("a")], [answer("a"), answer("b")], [answer("a"), answer("b"), ask("q")]])
def test_what_the_model_says_first_ends_no_turn(opening: list[dict[str, Any]]) -> None:
    assert len(turns(opening, preamble=[b"[{}]"])) == 1


def test_answers_in_a_row_are_one_answer() -> None:
    tool = {"role": "tool", "content": "found", "tool_call_id": "c"}
    call = {"role": "assistant", "content": None, "tool_calls": CALL}
    assert len(turns([ask("q"), call, answer("a"), ask("r")])) == 2
    assert len(turns([ask("q"), call, tool, tool, answer("a"), ask("r")])) == 3


# --- (a) what is appended ------------------------------------------------------------------------------------------


@given(messages, asks, answers, messages)
def test_a_history_that_goes_on_begins_with_every_turn_before(
    earlier: list[dict[str, Any]], question: dict[str, Any], reply: dict[str, Any], later: list[dict[str, Any]]
) -> None:
    before = turns([*earlier, question])
    after = turns([*earlier, question, reply, *later])
    assert after[: len(before)] == before
    assert len(after) > len(before)


@given(messages, messages)
def test_whatever_is_appended_no_turn_changes_but_the_last(
    earlier: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    kept = turns(earlier)[:-1]
    assert turns([*earlier, *later])[: len(kept)] == kept


# --- (b), (c) what changes -----------------------------------------------------------------------------------------


@given(messages, st.data())
def test_another_message_changes_its_turn_and_every_later_one(
    conversation: list[dict[str, Any]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(conversation) - 1))
    content = conversation[at]["content"]
    more = f"{content}!" if isinstance(content, str) else [*(content or ()), {"type": "text", "text": "!"}]
    changed = [*conversation[:at], {**conversation[at], "content": more}, *conversation[at + 1 :]]
    for end, one, other in zip(ends(conversation), turns(conversation), turns(changed), strict=True):
        assert (one == other) is (end <= at)


@given(messages, st.integers(0, 7))
def test_a_message_left_out_changes_every_later_turn(conversation: list[dict[str, Any]], at: int) -> None:
    at %= len(conversation)
    rest = conversation[:at] + conversation[at + 1 :]
    kept = sum(end <= at for end in ends(conversation))
    assert not set(turns(conversation)[kept:]) & set(turns(rest))


@given(messages)
def test_other_tools_change_every_turn(conversation: list[dict[str, Any]]) -> None:
    one = turns(conversation, preamble=[b'[{"name":"f"}]'])
    other = turns(conversation, preamble=[b'[{"name":"g"}]'])
    assert len(one) == len(other)
    assert not set(one) & set(other)


def test_another_model_changes_every_turn() -> None:
    decoded = msgspec.json.decode(json.dumps(talk(2)), type=list[Message])
    one, other = (chat_chain(decoded, seed=seed, with_turns=True).turns for seed in (1, 2))
    assert not set(one) & set(other)


def test_text_cannot_move_between_turns() -> None:
    assert not set(turns([ask("a"), answer("b"), ask("c")])) & set(turns([ask("ab"), answer(""), ask("c")]))


# --- (d) what is the same ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hi", {"type": "text", "text": "hi"}),
        ({"text": "hi"}, {"type": "input_text", "text": "hi"}),
        ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}),
    ],
)
def test_what_the_prompt_does_not_show_makes_no_other_turn(one: object, other: object) -> None:
    said = [turns([{"role": "user", "content": [part]}, answer("a"), ask("q")]) for part in (one, other)]
    assert said[0] == said[1]


@given(messages, messages)
def test_turns_are_the_same_just_where_the_streams_are(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    # Blocks of one byte tell the whole stream.
    same = chain(one, block_bytes=1).hashes == chain(other, block_bytes=1).hashes
    assert (turns(one) == turns(other)) is same


# --- (e) the bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchanges", [MAX_LATE_TURNS - 1, MAX_LATE_TURNS])
def test_a_history_up_to_the_bound_is_told_whole(exchanges: int) -> None:
    said = turns(talk(exchanges))
    assert len(said) == exchanges + 1
    assert said[:-1] == turns(talk(exchanges - 1))


@pytest.mark.parametrize("exchanges", [MAX_LATE_TURNS + 1, 1000])
def test_of_a_longer_one_the_root_and_the_newest_turns_are_told(exchanges: int) -> None:
    before, after = turns(talk(exchanges - 1)), turns(talk(exchanges))
    assert len(after) == MAX_LATE_TURNS + 1
    assert after[0] == before[0] == turns(talk(0))[0]
    assert after[1:-1] == before[-(MAX_LATE_TURNS - 1) :]
    assert after[-1] not in before


def test_history_is_what_stands_before_the_last_answer_in_whole_blocks() -> None:
    before, long = [ask("q" * 600)], [ask("q" * 600), answer("a" * 300), ask("more")]
    sent = len(chain(before, block_bytes=64).hashes)
    again = chain(long, block_bytes=64)
    assert again.history_blocks == sent > 0
    assert again.hashes[:sent] == chain(before, block_bytes=64).hashes
    assert chain(before, block_bytes=64).history_blocks == 0
