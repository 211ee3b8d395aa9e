import json
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Endpoint
from gateway.wire.prompt_chain import Message, PromptChain, block_hashes, chat_chain, root_seed, text_chain, token_chain

SEED = 7
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
OTHER_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}

parts = st.text(max_size=40) | st.just(IMAGE) | st.text(max_size=300).map(lambda text: {"type": "text", "text": text})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"])},
    optional={
        "content": st.none() | st.text(max_size=600) | st.lists(parts, max_size=4),
        "tool_calls": st.just([{"id": "c", "function": {"name": "f", "arguments": "{}"}}]),
        "reasoning": st.text(max_size=50),
    },
)


def decoded(conversation: list[dict[str, Any]]) -> list[Message]:
    return msgspec.json.decode(json.dumps(conversation), type=list[Message])


def hashed(conversation: list[dict[str, Any]], **kwargs: Any) -> PromptChain:
    return chat_chain(decoded(conversation), seed=SEED, **kwargs)


def user(content: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def is_prefix(shorter: tuple[int, ...], longer: tuple[int, ...]) -> bool:
    return longer[: len(shorter)] == shorter


def test_each_block_is_hashed_with_the_hash_before_it() -> None:
    stream = bytes(range(256)) * 2
    first = xxhash.xxh3_64_intdigest(stream[:256], SEED)
    second = xxhash.xxh3_64_intdigest(stream[256:], first)
    assert block_hashes(stream + b"tail", seed=SEED) == (first, second)


@given(st.binary(max_size=1000), st.binary(max_size=1000))
def test_only_whole_blocks_count_and_more_bytes_change_none_of_them(stream: bytes, more: bytes) -> None:
    hashes = block_hashes(stream, seed=SEED, block_bytes=64)
    assert len(hashes) == len(stream) // 64
    assert is_prefix(hashes, block_hashes(stream + more, seed=SEED, block_bytes=64))


@given(st.lists(messages, min_size=1, max_size=5), messages)
def test_appending_a_message_keeps_every_earlier_block(
    conversation: list[dict[str, Any]], reply: dict[str, Any]
) -> None:
    before = hashed(conversation, block_bytes=64)
    after = hashed([*conversation, reply], block_bytes=64)
    assert is_prefix(before.hashes, after.hashes)
    assert after.text_bytes > before.text_bytes


def test_a_difference_early_changes_every_block_after_it() -> None:
    one, two = hashed(user("a" + "x" * 1000)), hashed(user("b" + "x" * 1000))
    assert len(one.hashes) >= 3
    assert not set(one.hashes) & set(two.hashes)


@given(st.text(max_size=20), st.text(max_size=20))
def test_text_cannot_move_between_messages(first: str, second: str) -> None:
    apart = [*user(first), *user(second)]
    together = user(first + second)
    assert hashed(apart, block_bytes=4).hashes != hashed(together, block_bytes=4).hashes


def test_role_name_reasoning_and_tool_calls_are_part_of_the_prompt() -> None:
    plain = {"role": "assistant", "content": "x" * 300}
    variants = [
        plain,
        {**plain, "role": "user"},
        {**plain, "name": "ann"},
        {**plain, "reasoning": "hm"},
        {**plain, "reasoning_content": "ha"},
        {**plain, "tool_calls": [{"id": "1"}]},
        {**plain, "function_call": {"name": "f"}},
        {**plain, "tool_call_id": "1"},
    ]
    # The last block is filled up by a message after it, so that trailing fields reach a whole block.
    chains = [hashed([variant, *user("y" * 300)]).hashes for variant in variants]
    assert len(set(chains)) == len(variants)


def test_tools_come_before_everything_else() -> None:
    with_tools = hashed(user("x" * 600), preamble=[b'[{"name":"f"}]'])
    without = hashed(user("x" * 600), preamble=[b""])
    assert not set(with_tools.hashes) & set(without.hashes)


def test_other_images_never_match() -> None:
    tail = {"type": "text", "text": "what is this? " * 40}
    one, two = hashed(user([IMAGE, tail])), hashed(user([OTHER_IMAGE, tail]))
    assert one.hashes
    assert not set(one.hashes) & set(two.hashes)


def test_the_same_image_matches() -> None:
    tail = {"type": "text", "text": "what is this? " * 40}
    assert hashed(user([IMAGE, tail])) == hashed(user([IMAGE, tail]))


def test_media_count_as_parts_and_not_as_text() -> None:
    big = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}
    media = [big, {"type": "input_audio", "input_audio": {}}, {"type": "video_url"}, {"type": "file"}, {"x": 1}, 5]
    chain = hashed(user([*media, {"type": "text", "text": "hello"}]))
    assert chain.media_parts == len(media)
    # One byte sets the text off from the media before it.
    assert chain.text_bytes == hashed(user("hello")).text_bytes + 1


@pytest.mark.parametrize(
    "part",
    [
        "hello",
        {"type": "text", "text": "hello"},
        {"text": "hello"},
        {"type": "input_text", "text": "hello"},
        {"type": "refusal", "refusal": "hello"},
        {"type": "thinking", "thinking": "hello"},
    ],
)
def test_parts_that_are_text(part: object) -> None:
    chain = hashed(user([part]))
    assert chain.media_parts == 0
    assert chain.text_bytes == hashed(user(["hello"])).text_bytes


@given(st.text(max_size=300), st.sampled_from(["text", "input_text", "output_text", ""]))
def test_one_text_part_is_the_same_prompt_as_its_text(text: str, kind: str) -> None:
    plain = [*user(text), {"role": "assistant", "content": text}]
    parts = [{**message, "content": [{"type": kind, "text": text}]} for message in plain]
    as_text, as_parts = (hashed(messages, block_bytes=4, with_turns=True) for messages in (plain, parts))
    assert as_text == as_parts


@given(st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=8), max_size=4))
def test_the_parts_of_a_content_are_told_apart(one: list[str], other: list[str]) -> None:
    chains = [hashed([*user(parts), *user("tail")], block_bytes=1).hashes for parts in (one, other)]
    # No text and no part are both nothing.
    assert (chains[0] == chains[1]) is ((one or [""]) == (other or [""]))


def test_media_alone_is_no_text() -> None:
    assert hashed(user([IMAGE]), block_bytes=4).hashes != hashed(user(""), block_bytes=4).hashes


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_content_is_no_text(content: object) -> None:
    assert hashed(user(content)) == hashed([{"role": "user"}])


def test_text_bytes_are_utf8_bytes() -> None:
    assert text_chain("aé😀", seed=SEED).text_bytes == 7


@given(st.text(max_size=400))
def test_a_text_prompt_is_its_bytes(text: str) -> None:
    assert text_chain(text, seed=SEED, block_bytes=32).hashes == block_hashes(text.encode(), seed=SEED, block_bytes=32)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=300), st.lists(st.integers(0, 2**32 - 1), max_size=70))
def test_64_token_ids_are_one_block(ids: list[int], more: list[int]) -> None:
    chain = token_chain(ids, seed=SEED)
    assert len(chain.hashes) == len(ids) // 64
    assert chain.text_bytes == 0
    assert is_prefix(chain.hashes, token_chain(ids + more, seed=SEED).hashes)


def test_token_ids_never_match_a_text_of_the_same_bytes() -> None:
    assert token_chain([0x61616161] * 64, seed=SEED).hashes != text_chain("a" * 256, seed=SEED).hashes


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_a_token_id_out_of_range_is_an_error(token_id: int) -> None:
    with pytest.raises(OverflowError):
        token_chain([token_id], seed=SEED)


def test_model_endpoint_and_salt_each_have_their_own_root() -> None:
    roots = {
        root_seed("m", endpoint=Endpoint.CHAT),
        root_seed("adapter", endpoint=Endpoint.CHAT),
        root_seed("m", endpoint=Endpoint.COMPLETIONS),
        root_seed("m", endpoint=Endpoint.CHAT, cache_salt=b'"s"'),
        root_seed("ms", endpoint=Endpoint.CHAT),
    }
    assert len(roots) == 5


def test_hashes_are_the_same_in_every_process() -> None:
    # A fixed value: shared state and journals compare hashes between processes and releases.
    seed = root_seed("m", endpoint=Endpoint.COMPLETIONS)
    assert text_chain("x" * 256, seed=seed).hashes == (1221253033226046484,)
