"""Adapters, token ids, and the routes of models that do not generate."""

import base64
import struct
from typing import Any

import pytest

from tests.loadtest.worker.worker_lab import CHAT, COMPLETIONS, MODEL, Emulated, Lab, chat, completion

BOUNDARY = "b0und"


@pytest.fixture
def pooling(lab: Lab) -> Emulated:
    return lab.worker(tasks=("pooling",))


def form(**fields: bytes) -> bytes:
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (BOUNDARY.encode(), name.encode(), value)
        for name, value in fields.items()
    ]
    return b"".join(parts) + b"--%b--\r\n" % BOUNDARY.encode()


async def test_adapters_are_listed_under_their_base_and_may_be_asked_for(lab: Lab) -> None:
    worker = lab.worker(adapters=("lora-a", "lora-b"))
    cards = (await lab.get(worker, "/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(MODEL, None), ("lora-a", MODEL), ("lora-b", MODEL)]
    answer = (await lab.post(worker, CHAT, chat(max_tokens=1) | {"model": "lora-b"})).json()
    assert answer["model"] == "lora-b"
    refused = await lab.post(worker, CHAT, chat() | {"model": "lora-c"})
    assert refused.json()["error"]["message"].endswith(f"Valid aliases: {MODEL}, lora-a, lora-b.")


async def test_adapters_share_no_kv(lab: Lab) -> None:
    worker = lab.worker(adapters=("lora-a",))
    for model, cached in ((MODEL, 0), ("lora-a", 0), ("lora-a", 992)):
        answer = (await lab.post(worker, CHAT, chat("x" * 4000, max_tokens=1) | {"model": model})).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


async def test_rendered_token_ids_are_those_of_the_prompt(lab: Lab) -> None:
    worker = lab.worker()
    rendered = (await lab.post(worker, CHAT + "/render", chat("hello"))).json()
    told = (await lab.post(worker, "/tokenize", chat("hello"))).json()
    assert rendered["token_ids"] == told["tokens"]
    first, second = (await lab.post(worker, COMPLETIONS + "/render", completion(["hello", [1, 2]]))).json()
    assert first["token_ids"] == (await lab.post(worker, "/tokenize", completion("hello"))).json()["tokens"]
    assert second["token_ids"] == [1, 2]
    assert worker.host.snapshot().finished == 0


async def test_a_pooling_model_does_not_generate(lab: Lab, pooling: Emulated) -> None:
    assert (await lab.post(pooling, CHAT, chat())).status == 404


@pytest.mark.parametrize(
    ("inputs", "vectors", "tokens"),
    [("abcd", 1, 1), (["abcd", "efghi"], 2, 3), ([1, 2, 3], 1, 3), ([[1], [2, 3]], 2, 3)],
)
async def test_embeddings_count_their_inputs(
    lab: Lab, pooling: Emulated, inputs: Any, vectors: int, tokens: int
) -> None:
    answer = (await lab.post(pooling, "/v1/embeddings", {"model": MODEL, "input": inputs})).json()
    assert [each["index"] for each in answer["data"]] == list(range(vectors))
    assert answer["usage"]["prompt_tokens"] == tokens
    assert pooling.host.snapshot().finished == vectors


async def test_equal_texts_have_equal_vectors_in_either_encoding(lab: Lab, pooling: Emulated) -> None:
    body = {"model": MODEL, "input": ["one", "two", "one"], "dimensions": 8}
    one, two, again = [each["embedding"] for each in (await lab.post(pooling, "/v1/embeddings", body)).json()["data"]]
    assert one == again != two
    assert len(one) == 8
    assert sum(number**2 for number in one) == pytest.approx(1)
    encoded = (await lab.post(pooling, "/v1/embeddings", body | {"encoding_format": "base64"})).json()["data"]
    assert list(struct.unpack("<8f", base64.b64decode(encoded[0]["embedding"]))) == one


async def test_scores_pair_one_with_all_or_each_with_its_own(lab: Lab, pooling: Emulated) -> None:
    body = {"model": MODEL, "text_1": "a cat", "text_2": ["a cat", "a dog", "no"]}
    data = (await lab.post(pooling, "/v1/score", body)).json()["data"]
    assert [each["score"] for each in data] == [1.0, pytest.approx(1 / 3), 0.0]
    assert (await lab.post(pooling, "/v1/score", body | {"text_1": ["a", "b"]})).status == 400


async def test_rerank_puts_the_likest_first_and_keeps_the_top(lab: Lab, pooling: Emulated) -> None:
    body = {"model": MODEL, "query": "a cat", "documents": ["no", "a dog", "a cat"]}
    results = (await lab.post(pooling, "/v1/rerank", body)).json()["results"]
    assert [each["index"] for each in results] == [2, 1, 0]
    (best,) = (await lab.post(pooling, "/v1/rerank", body | {"top_n": 1})).json()["results"]
    assert best["document"]["text"] == "a cat"


async def test_a_transcription_follows_from_the_recording(lab: Lab) -> None:
    worker = lab.worker(tasks=("transcription",))
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    path, sound = "/v1/audio/transcriptions", b"\0\r\n\r\n" * 20_000
    one, again, other = [
        (await lab.post(worker, path, form(file=data, model=MODEL.encode()), content_type=kind)).json()
        for data in (sound, sound, sound + b"!")
    ]
    assert one == again
    assert one["text"] != other["text"]
    assert one["usage"] == {"type": "duration", "seconds": 4}
    assert (await lab.post(worker, path, form(file=sound, model=b"no"), content_type=kind)).status == 404
    assert (await lab.post(worker, path, form(model=MODEL.encode()), content_type=kind)).status == 400
    assert (await lab.post(worker, path, {"model": MODEL})).status == 400
