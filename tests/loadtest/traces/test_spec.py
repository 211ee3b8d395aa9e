import pytest

from loadtest.traces.spec import TRACE_HELP, Options, TraceSpec, parse_spec
from loadtest.traces.types import TraceError


def options(**values: str) -> Options:
    return Options("kind:name", dict(values))


def test_a_spec_has_a_kind_a_name_and_options() -> None:
    (found,) = parse_spec("mooncake:a/b.jsonl?jitter=0&rate=2.5")
    assert found == TraceSpec(
        text="mooncake:a/b.jsonl?jitter=0&rate=2.5",
        kind="mooncake",
        name="a/b.jsonl",
        options={"jitter": "0", "rate": "2.5"},
    )


def test_several_traces_are_joined_by_a_plus_between_spaces() -> None:
    found = parse_spec("azure:a+b.csv + synthetic:miniswe?rate=1")
    assert [(one.kind, one.name) for one in found] == [("azure", "a+b.csv"), ("synthetic", "miniswe")]


@pytest.mark.parametrize("text", ["", "mooncake", "mooncake:", ":x", "azure:x + ", "azure:x?rate", "azure:x?a=1&a=2"])
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(TraceError):
        parse_spec(text)


def test_the_help_names_every_kind() -> None:
    assert all(
        f"{kind}:" in TRACE_HELP for kind in ("mooncake", "azure", "servegen", "synthetic", "claude", "lmcache", "swe")
    )


def test_no_word_of_the_help_is_cut_off_in_a_narrow_column() -> None:
    assert max(map(len, TRACE_HELP.split())) <= 25


def test_options_are_taken_once_and_the_rest_is_complained_of() -> None:
    found = options(rate="2", jitter="no", typo="1")
    assert found.positive("rate") == 2.0
    assert found.flag("jitter", default=True) is False
    assert found.number("absent", 7.0) == 7.0
    with pytest.raises(TraceError, match="unknown option 'typo'"):
        found.done()


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_number_must_be_one(text: str) -> None:
    with pytest.raises(TraceError, match="kind:name: rate"):
        options(rate=text).number("rate", 1.0)


def test_zero_is_not_positive_and_a_half_is_not_whole() -> None:
    with pytest.raises(TraceError, match="above 0"):
        options(rate="0").positive("rate")
    with pytest.raises(TraceError, match="whole"):
        options(block="16.5").whole("block", 16)
    with pytest.raises(TraceError, match="1 or 0"):
        options(jitter="maybe").flag("jitter", default=True)
