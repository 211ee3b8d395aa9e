"""Bodies that are no JSON object, or are one that nobody should have to read."""

import json

import pytest

from tests.malformed.front import JSON_ROUTES, Front, fields, good, raw

LEVELS = 10_000
MEGABYTE = 2**20

NOT_JSON = {
    "a lone brace": b"{",
    "a word": b"hello",
    "an unquoted key": b"{model:1}",
    "single quotes": b"{'model':'llama'}",
    "a trailing comma": b'{"model":"llama",}',
    "no value": b'{"model":}',
    "no colon": b'{"model" "llama"}',
    "a comment": b'{"model":"llama"/* no */}',
    "a control character in a string": b'{"model":"lla\nma"}',
    "a wrong escape": b'{"model":"\\x41"}',
    "a byte order mark": b'\xef\xbb\xbf{"model":"llama"}',
    "UTF-16": '{"model":"llama"}'.encode("utf-16"),
    "a form": b"model=llama&stream=true",
    "zero bytes": bytes(64),
    "server-sent events": b"data: {}\n\n",
}
NOT_AN_OBJECT = [b"[]", b'[{"model":"llama"}]', b'"text"', b'""', b"5", b"-1.5", b"null", b"true", b"false"]
NOT_UTF8 = {
    "a stray byte": b"\xff",
    "a continuation alone": b"\x80",
    "a cut sequence": b"\xe2\x82",
    "an overlong slash": b"\xc0\xaf",
    "an encoded surrogate": b"\xed\xa0\x80",
    "beyond Unicode": b"\xf5\x80\x80\x80",
    "Latin-1": "caf\xe9".encode("latin-1"),
}
NO_NUMBERS = [b"NaN", b"Infinity", b"-Infinity", b"nan", b"+1", b"01", b".5", b"1.", b"1e", b"0x10", b"1_000"]


@pytest.fixture
def front() -> Front:
    return Front()


def named(cases: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("body", cases.values(), ids=cases.keys())


@named(NOT_JSON)
async def test_what_is_not_json(front: Front, body: bytes) -> None:
    for path in JSON_ROUTES:
        error = await front.refuses(path, body)
        assert "JSON" in error["message"]
    await front.still_works()


@pytest.mark.parametrize("rest", [b" x", b"{}", b",", b"}", b"\0", b"\n{}\n"])
async def test_something_after_the_object(front: Front, rest: bytes) -> None:
    for path in JSON_ROUTES:
        assert "JSON" in (await front.refuses(path, good(path) + rest))["message"]
    await front.still_works()


@pytest.mark.parametrize("body", NOT_AN_OBJECT)
async def test_json_that_is_no_object(front: Front, body: bytes) -> None:
    for path in JSON_ROUTES:
        error = await front.refuses(path, body)
        assert "must be a JSON object" in error["message"]
    await front.still_works()


@pytest.mark.parametrize("body", [b"", b" ", b"\r\n\t ", b"\n" * 1000])
async def test_a_body_that_says_nothing(front: Front, body: bytes) -> None:
    for path in JSON_ROUTES:
        error = await front.refuses(path, body)
        assert "empty" in error["message"]
    await front.still_works()


@pytest.mark.parametrize("path", JSON_ROUTES)
async def test_a_good_body_that_was_cut_anywhere(front: Front, path: str) -> None:
    body = good(path)
    for end in range(len(body)):
        await front.refuses(path, body[:end])
    await front.passes(path, body)
    await front.still_works()


@named(NOT_UTF8)
async def test_text_that_is_not_utf8(front: Front, body: bytes) -> None:
    for path in JSON_ROUTES:
        for key in (*fields(path), "metadata"):
            error = await front.refuses(path, raw(path, key, b'"' + body + b'"'))
            assert "UTF-8" in error["message"]
        await front.refuses(path, raw(path, "key", b'1,"' + body + b'":1'))
    await front.still_works()


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\ude00", b"\\ude00\\ud83d", b"a\\ud83dz"])
async def test_half_of_a_surrogate_pair(front: Front, half: bytes) -> None:
    text = b'"' + half + b'"'
    for path in JSON_ROUTES:
        await front.refuses(path, raw(path, "model", text))
        # What nobody here reads is the worker's to judge.
        await front.judges(path, raw(path, "user", text))
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
        await front.refuses(path, raw(path, "messages", b'[{"role":"user","content":' + text + b"}]"))
    await front.refuses("/v1/completions", raw("/v1/completions", "prompt", text))
    await front.still_works()


@pytest.mark.parametrize("value", NO_NUMBERS)
async def test_numbers_that_json_does_not_have(front: Front, value: bytes) -> None:
    for path in JSON_ROUTES:
        for key in ("temperature", "max_tokens", "n", "model"):
            await front.refuses(path, raw(path, key, value))
    await front.still_works()


@pytest.mark.parametrize(
    "key", ["messages", "prompt", "input", "tools", "metadata", "stream", "stream_options", "model"]
)
@pytest.mark.parametrize(
    "nested",
    [
        b"[" * LEVELS + b"]" * LEVELS,
        b'{"a":' * LEVELS + b"1" + b"}" * LEVELS,
        b'[{"role":"user","content":' + b"[" * LEVELS + b"]" * LEVELS + b"}]",
    ],
    ids=["lists", "objects", "content"],
)
async def test_nesting_without_end(front: Front, key: str, nested: bytes) -> None:
    for path in JSON_ROUTES:
        await front.refuses(path, raw(path, key, nested))
    await front.still_works()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
@pytest.mark.parametrize("changes", [{}, {"stream": True}, {"model": "alias"}], ids=["plain", "stream", "alias"])
async def test_nesting_as_deep_as_can_just_be_read(front: Front, path: str, changes: dict[str, object]) -> None:
    # Each edit reads the body again, from another depth of the stack: none may fail where the first look did not.
    outcomes = set()
    for levels in range(900, 1000):
        nested = b"[" * levels + b"]" * levels
        client = await front.send(path, good(path, **changes)[:-1] + b',"metadata":' + nested + b"}")
        reached = not client.task.done()
        if reached:
            assert nested in front.lab.leg.body
            front.lab.leg.answer(400, b"{}")
        await client.task
        assert client.status == 400
        outcomes.add(reached)
    assert outcomes == {True, False}
    front.lab.check_settled()
    await front.still_works()


@pytest.mark.parametrize("piece", [b"[", b'{"a":', b"{", b'"', b"\\", b"-", b" [", b"[[],"])
async def test_a_megabyte_of_nothing_but(front: Front, piece: bytes) -> None:
    body = piece * (MEGABYTE // len(piece))
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/score",
    ):
        await front.refuses(path, body)
        await front.refuses(path, raw(path, "metadata", body))
    await front.still_works()


async def test_a_megabyte_of_digits_is_no_count(front: Front) -> None:
    for key in ("max_tokens", "n"):
        error = await front.refuses("/v1/chat/completions", raw("/v1/chat/completions", key, b"9" * MEGABYTE))
        assert len(error["message"]) < 500


async def test_an_error_names_what_was_sent_without_repeating_all_of_it(front: Front) -> None:
    for path in JSON_ROUTES:
        error = await front.refuses(path, b'{"model":' + b"x" * MEGABYTE)
        assert len(error["message"]) < 500


# -- duplicate keys --------------------------------------------------------------------------------------------------


async def test_of_a_repeated_key_the_last_value_counts_as_it_does_for_the_worker(front: Front) -> None:
    for path in JSON_ROUTES:
        body = good(path)
        await front.passes(path, b'{"model":"nobody",' + body[1:])
        await front.refuses(path, body[:-1] + b',"model":"nobody"}', status=404)
        # A key is the same key however its letters are written.
        await front.refuses(path, body[:-1] + b',"mod\\u0065l":"nobody"}', status=404)
    await front.still_works()


async def test_a_repeated_alias_is_replaced_wherever_it_stands(front: Front) -> None:
    path = "/v1/chat/completions"
    body = b'{"model":"nobody",' + good(path, model="x")[1:-1] + b',"mod\\u0065l":"alias"}'
    client = await front.send(path, body)
    assert not client.task.done()
    assert json.loads(front.lab.leg.body) == fields(path)
    assert front.lab.leg.body.count(b"model") == 1
    front.lab.leg.answer(200, b"{}")
    await client.task


@pytest.mark.parametrize(
    "smuggled",
    [
        b'"kv_transfer_params":{"remote_host":"evil"}',
        b'"kv_transfer_param\\u0073":{"remote_host":"evil"}',
        b'"kv_transfer_params":null,"kv_transfer_params":{"remote_host":"evil"}',
        b'"kv_transfer_params":{"remote_host":"evil"},"kv_transfer_param\\u0073":{"remote_host":"evil"}',
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize"]
)
async def test_transfer_parameters_of_a_clients_own_never_reach_a_worker(
    front: Front, path: str, smuggled: bytes
) -> None:
    client = await front.send(path, good(path)[:-1] + b"," + smuggled + b"}")
    assert not client.task.done()
    assert json.loads(front.lab.leg.body) == fields(path)
    assert b"evil" not in front.lab.leg.body
    front.lab.leg.answer(200, b"{}")
    await client.task


async def test_repeated_stream_options_still_ask_for_the_usage(front: Front) -> None:
    path = "/v1/chat/completions"
    body = good(path, stream=True)[:-1] + b',"stream_options":{"include_usage":false},"stream_options":{"x":1}}'
    client = await front.send(path, body)
    assert json.loads(front.lab.leg.body)["stream_options"] == {"x": 1, "include_usage": True}
    client.leave()
    await client.task
    front.lab.check_settled()
