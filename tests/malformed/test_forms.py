"""Uploads whose multipart body is not what it should be."""

import pytest

from tests.malformed.front import AUDIO, BOUNDARY, FORM_TYPE, UPLOAD, Front, form
from tests.upstream.journey_lab import MODEL

FILE = ('file"; filename="a.wav', b"RIFF\x00\xff")
MODEL_PART = ("model", MODEL.encode())


@pytest.fixture
def front() -> Front:
    return Front()


async def works(front: Front) -> None:
    for path in AUDIO:
        await front.passes(path, UPLOAD)
    await front.still_works()


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b'multipart/form-data; boundary="fence',
        b"multipart/form-data; charset=utf-8",
        b"multipart/mixed; boundary=fence",
        b"multipart/form-data; boundary=other",
        b"application/x-www-form-urlencoded",
        b"\xff\xfe",
    ],
)
async def test_a_content_type_that_names_no_boundary_or_another(front: Front, content_type: bytes | None) -> None:
    headers = [] if content_type is None else [(b"content-type", content_type)]
    for path in AUDIO:
        error = await front.refuses(path, UPLOAD, headers=headers)
        assert "multipart/form-data" in error["message"]
    await works(front)


@pytest.mark.parametrize(
    "body",
    [form(FILE), form(("model", b""), FILE), form(('model"; filename="m', MODEL.encode()), FILE), form()],
    ids=["none", "empty", "a file", "no part at all"],
)
async def test_an_upload_without_a_model(front: Front, body: bytes) -> None:
    for path in AUDIO:
        assert (await front.refuses(path, body))["param"] in {"model", None}
    await works(front)


async def test_an_upload_of_a_model_that_nobody_serves(front: Front) -> None:
    for path in AUDIO:
        await front.refuses(path, form(("model", b"nobody"), FILE), status=404)
        await front.refuses(path, form(("model", b"\xff\xfe"), FILE), status=404)
    await works(front)


async def test_an_upload_that_was_cut_anywhere(front: Front) -> None:
    for end in range(len(UPLOAD) - len(b"--\r\n") + 1):
        await front.refuses(AUDIO[0], UPLOAD[:end])
    await works(front)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"hello",
        b'{"model":"llama"}',
        bytes(1000),
        b"--" + BOUNDARY,
        b"--" + BOUNDARY + b"\r\n",
        b"--" + BOUNDARY + b"\r\n\r\n",
        b"--" + BOUNDARY + b"x\r\n\r\n",
        (b"--" + BOUNDARY + b"\r\n") * 1000,
        UPLOAD.replace(b"content-disposition", b"content-nonsense", 1),
        UPLOAD.replace(b'name="model"', b"", 1),
        UPLOAD.replace(b'name="model"', b'name="model"; name="file"', 1),
        UPLOAD.replace(b"form-data;", b"attachment;", 1),
        UPLOAD.replace(b'name="model"', b'name="model', 1),
        UPLOAD.replace(b"\r\n", b"\n"),
        UPLOAD.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 10_000 + b"\r\n\r\n", 1),
        form(*[("field", b"x")] * 1001),
    ],
)
async def test_a_form_that_is_none(front: Front, body: bytes) -> None:
    for path in AUDIO:
        await front.refuses(path, body, headers=[FORM_TYPE])
    await works(front)


@pytest.mark.parametrize("value", [b"-1", b"0", b"1e9", b"9" * 400, b"\xff", b"", b"NaN"])
async def test_fields_that_are_the_workers_to_judge(front: Front, value: bytes) -> None:
    for name in ("max_completion_tokens", "stream", "prompt", "temperature"):
        await front.passes(AUDIO[0], form(MODEL_PART, (name, value), FILE))
    await works(front)
