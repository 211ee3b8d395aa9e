from pathlib import Path

import httptools
import pytest

from loadtest.client.answer import Answer, error_message
from tests.loadtest.client.scripted_server import DONE, content, event, finish, role, usage

FIXTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "http" / "tiny"


def read(*reads: tuple[float, bytes]) -> Answer:
    answer = Answer()
    for at_s, data in reads:
        answer.feed(data, at_s)
    return answer


def test_the_role_is_not_the_first_token() -> None:
    answer = read((1.0, role()), (2.5, content()), (3.0, content()), (3.1, finish()), (3.2, DONE))
    assert answer.first_content_s == 2.5
    assert answer.last_content_s == 3.0


def test_time_per_token_comes_from_the_usage_not_from_the_events() -> None:
    answer = read((1.0, content("two tokens")), (3.0, content("three more")), (3.5, usage(10, 5)), (3.5, DONE))
    assert answer.tpot_s == (3.0 - 1.0) / 4
    assert answer.gaps_s == [2.0]


@pytest.mark.parametrize("tokens", [0, 1])
def test_time_per_token_needs_two_tokens(tokens: int) -> None:
    assert read((1.0, content()), (2.0, usage(10, tokens))).tpot_s is None


def test_time_per_token_needs_a_usage_and_content() -> None:
    assert read((1.0, content()), (2.0, content())).tpot_s is None
    assert read((1.0, usage(10, 7))).tpot_s is None


def test_events_of_one_read_have_no_gap_between_them() -> None:
    answer = read((1.0, content() + content()), (1.5, content()))
    assert answer.gaps_s == [0.0, 0.5]


def test_the_p99_gap_ignores_one_in_a_hundred() -> None:
    answer = read(*((float(n), content()) for n in range(200)), (1_000.0, content()))
    assert answer.itl_p99_s == 1.0
    assert max(answer.gaps_s) == 801.0
    assert Answer().itl_p99_s is None


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [{"text": "x"}]},
        {"choices": [{"delta": {"reasoning_content": "x"}}]},
        {"choices": [{"delta": {"reasoning": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
    ],
)
def test_text_reasoning_and_tool_calls_are_content(payload: object) -> None:
    assert read((4.0, event(payload))).first_content_s == 4.0


@pytest.mark.parametrize(
    "payload", [{"choices": [{"text": ""}]}, {"choices": [{"delta": {"content": None}}]}, {"choices": []}, {}]
)
def test_empty_events_are_not_content(payload: object) -> None:
    assert read((4.0, event(payload))).first_content_s is None


def test_the_last_usage_counts() -> None:
    answer = read((1.0, usage(10, 1, 0)), (2.0, usage(10, 2, 8)))
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (10, 2, 8)


def test_unreported_cached_tokens_are_unknown_not_zero() -> None:
    assert read((1.0, usage(10, 1))).cached_tokens is None


def test_an_answer_is_complete_with_a_finish_reason_or_the_end_mark() -> None:
    assert not read((1.0, content())).complete
    assert read((1.0, finish())).complete
    assert read((1.0, DONE)).complete


@pytest.mark.parametrize(
    "payload",
    [{"error": {"message": "engine died", "code": 500}}, {"error": "x", "message": "engine died"}],
)
def test_an_error_in_the_stream_spoils_the_answer(payload: dict[str, object]) -> None:
    answer = read((1.0, content()), (2.0, event(payload)), (2.0, DONE))
    assert not answer.complete
    assert "engine died" in str(answer.error)


def test_what_is_no_openai_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed"):
        read((1.0, b"data: <html>\n\n"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"object": "error", "message": "too long", "code": 400}', "too long"),
        (b'{"error": "plain"}', '{"error": "plain"}'),
        (b"<h1>Bad Gateway</h1>\n", "<h1>Bad Gateway</h1>"),
        (b"", ""),
        (b"x" * 999, "x" * 200),
    ],
)
def test_error_bodies_of_every_kind_have_a_message(body: bytes, message: str) -> None:
    assert error_message(body) == message


@pytest.mark.shared_data
@pytest.mark.skipif(not FIXTURES.exists(), reason="the vLLM recordings are not here")
@pytest.mark.parametrize("name", ["chat_stream_usage", "chat_stream_usage_continuous", "cmpl_stream_usage"])
def test_a_recorded_vllm_stream_is_read_to_its_end(name: str) -> None:
    answer = Answer()
    unchunk = httptools.HttpResponseParser(_Body(answer))
    unchunk.feed_data((FIXTURES / f"{name}.response.bin").read_bytes())
    assert answer.complete
    assert answer.done
    assert answer.input_tokens
    assert answer.output_tokens


class _Body:
    """Feeds an answer what HTTP's framing leaves."""

    def __init__(self, answer: Answer) -> None:
        self.on_body = lambda data: answer.feed(data, 0.0)
