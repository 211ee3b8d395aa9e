"""Lines of the process: one chain, one `request.finished` per request, nothing secret in it."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.core.types import Decision, Outcome, OutcomeKind, Refusal, RefusalKind, RequestId
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.log_stream import LogStream
from gateway.telemetry.logs import LogFormat, LogLevel, configure_logging, log_finished
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.request import RequestTelemetry
from gateway.telemetry.request_line import finished_fields, level_of
from tests.telemetry.telemetry_factories import (
    a_decision,
    a_failure,
    a_refusal,
    a_remote_decision,
    an_outcome,
    scrape,
    value,
)

LIBRARY_LOGGERS = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Logging is the process's: every test leaves it as it found it."""
    loggers = [logging.getLogger(name) for name in LIBRARY_LOGGERS]
    kept = [(logger, logger.handlers, logger.level, logger.disabled, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, disabled, propagate in kept:
        logger.handlers, logger.disabled, logger.propagate = handlers, disabled, propagate
        logger.setLevel(level)
    structlog.reset_defaults()


class Written(io.StringIO):
    """What was written, the lines that wait for the background writer among it."""

    output: LogStream | None = None

    def getvalue(self) -> str:
        if self.output is not None:
            self.output.flush()
        return super().getvalue()


@pytest.fixture
def stream() -> Iterator[Written]:
    written = Written()
    yield written
    if written.output is not None:
        written.output.close()


def log_json(stream: Written, level: LogLevel = LogLevel.INFO, process: int | None = None) -> None:
    stream.output = configure_logging(log_format=LogFormat.JSON, level=level, stream=stream, process=process)


def lines(stream: Written) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def finish(*args: Any, request_id: str = "r-1", model: str | None = "llama") -> None:
    log_finished(structlog.get_logger().bind(), *args, request_id=RequestId(request_id), model=model)


def test_an_event_is_one_json_line_with_level_and_time(stream: Written) -> None:
    log_json(stream)
    structlog.get_logger().info("worker.up", worker="decode-0", role="decode")
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "worker.up", "level": "info", "worker": "decode-0", "role": "decode"}


def test_finished_names_what_was_decided_and_what_came_of_it(stream: Written) -> None:
    log_json(stream)
    finish(a_remote_decision(model="llama-70b"), an_outcome())
    (line,) = lines(stream)
    del line["timestamp"]
    assert line == {
        "event": "request.finished",
        "level": "info",
        "request_id": "r-1",
        "model": "llama",
        "decision_id": "d-1",
        "served_model": "llama-70b",
        "attempt": 1,
        "path": "remote",
        "reason": "long_effective_isl",
        "prefill_worker": "prefill-0",
        "decode_worker": "decode-0",
        "slo": "chat",
        "outcome": "ok",
        "status": 200,
        "duration_s": 4.0,
        "ttft_s": 0.5,
        "tpot_s": 0.03,
        "input_tokens": 1000,
        "cached_tokens": 250,
        "output_tokens": 120,
        "slo_attained": True,
    }


def test_a_refused_request_says_why(stream: Written) -> None:
    log_json(stream)
    finish(a_refusal(RefusalKind.MODEL_NOT_FOUND), a_failure(OutcomeKind.REFUSED, status=404))
    (line,) = lines(stream)
    del line["timestamp"]
    assert line == {
        "event": "request.finished",
        "level": "info",
        "request_id": "r-1",
        "model": "llama",
        "refused": "model_not_found",
        "outcome": "refused",
        "status": 404,
        "duration_s": 4.0,
    }


ENDINGS = [
    (a_decision(), an_outcome()),
    (a_remote_decision(attempt=2), an_outcome(ttft_s=None, tpot_s=None, attained=False)),
    (a_remote_decision(), a_failure(OutcomeKind.TIMEOUT)),
    (a_refusal(), a_failure(OutcomeKind.REFUSED)),
    (None, a_failure(OutcomeKind.CLIENT_ERROR)),
]


@pytest.mark.parametrize("process", [None, 0, 3])
@pytest.mark.parametrize(("routed", "outcome"), ENDINGS)
def test_a_requests_line_is_the_one_that_the_chain_would_write(
    stream: Written, routed: Decision | Refusal | None, outcome: Outcome, process: int | None
) -> None:
    log_json(stream, process=process)
    finish(routed, outcome)
    fields = finished_fields(routed, outcome, request_id=RequestId("r-1"), model="llama")
    structlog.get_logger().log(level_of(outcome), "request.finished", **fields)
    quick, chained = lines(stream)
    assert len(quick.pop("timestamp")) == len(chained.pop("timestamp"))
    assert [*quick.items()] == [*chained.items()]


def test_lines_come_in_the_order_of_their_events(stream: Written) -> None:
    log_json(stream)
    finish(a_decision(), an_outcome())
    structlog.get_logger().warning("worker.down")
    finish(a_decision(), an_outcome())
    assert [line["event"] for line in lines(stream)] == ["request.finished", "worker.down", "request.finished"]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (OutcomeKind.OK, "info"),
        (OutcomeKind.CLIENT_ERROR, "info"),
        (OutcomeKind.CANCELLED, "info"),
        (OutcomeKind.TIMEOUT, "warning"),
        (OutcomeKind.UPSTREAM_ERROR, "warning"),
    ],
)
def test_a_workers_failure_is_a_warning(stream: Written, kind: OutcomeKind, level: str) -> None:
    log_json(stream)
    finish(a_decision(), a_failure(kind))
    assert [line["level"] for line in lines(stream)] == [level]


def test_levels_below_the_one_set_are_not_written(stream: Written) -> None:
    log_json(stream, LogLevel.WARNING)
    finish(a_decision(), an_outcome())
    finish(a_refusal(), a_failure(OutcomeKind.REFUSED))
    structlog.get_logger().debug("detail")
    logging.getLogger("uvicorn.error").info("started")
    assert stream.getvalue() == ""


def test_libraries_lines_go_through_the_same_chain(stream: Written) -> None:
    log_json(stream)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("httpx").warning("refused with Bearer %s", "abcdef")
    first, second = lines(stream)
    assert first["event"] == "Started server process [7]"
    assert (first["logger"], first["level"]) == ("uvicorn.error", "info")
    assert second["event"] == "refused with Bearer [redacted]"


def test_library_levels_of_their_own_are_rounded_down(stream: Written) -> None:
    log_json(stream, LogLevel.DEBUG)
    logging.getLogger("some.library").log(25, "notice")
    assert [line["level"] for line in lines(stream)] == ["info"]


def test_access_lines_and_client_calls_are_not_written(stream: Written) -> None:
    log_json(stream, LogLevel.DEBUG)
    logging.getLogger("uvicorn.access").info('"POST /v1/chat/completions" 200')
    logging.getLogger("httpx").info("HTTP Request: GET http://w/metrics")
    assert stream.getvalue() == ""


def test_uvicorns_own_handlers_are_taken_away(stream: Written) -> None:
    own = io.StringIO()
    logging.getLogger("uvicorn").addHandler(logging.StreamHandler(own))
    log_json(stream)
    logging.getLogger("uvicorn.error").error("boom")
    assert own.getvalue() == ""
    assert [line["event"] for line in lines(stream)] == ["boom"]


PROMPT = "a private prompt"


def fail_with(prompt: str) -> None:
    length = len(prompt)
    raise ValueError(f"{length} bytes are too long")


@pytest.mark.parametrize("log_format", LogFormat)
def test_tracebacks_show_no_local_variables(stream: Written, log_format: LogFormat) -> None:
    configure_logging(log_format=log_format, level=LogLevel.INFO, stream=stream)
    try:
        fail_with(PROMPT)
    except ValueError:
        structlog.get_logger().exception("request.failed")
    assert "ValueError: 16 bytes are too long" in stream.getvalue()
    assert PROMPT not in stream.getvalue()


@pytest.mark.parametrize("log_format", LogFormat)
def test_redaction_is_part_of_the_chain(stream: Written, log_format: LogFormat) -> None:
    configure_logging(log_format=log_format, level=LogLevel.INFO, stream=stream)
    structlog.get_logger().info("call", headers={"Authorization": "Bearer abcdef"}, prompt="tell me")
    assert "call" in stream.getvalue()
    assert "abcdef" not in stream.getvalue()
    assert "tell me" not in stream.getvalue()


@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("routed", [a_decision(), a_refusal(), None])
def test_a_requests_line_holds_no_credential_that_a_client_sent_as_a_name(
    stream: Written, log_format: LogFormat, routed: Decision | Refusal | None
) -> None:
    stream.output = configure_logging(log_format=log_format, level=LogLevel.INFO, stream=stream)
    finish(routed, an_outcome(), model="sk-abcdef0123456789")
    finish(routed, an_outcome(), request_id="Bearer abcdef0123456789")
    assert stream.getvalue().count("request.finished") == 2
    assert stream.getvalue().count("[redacted]") == 2
    assert "abcdef" not in stream.getvalue()


@pytest.mark.parametrize("named", ["model", "decode_worker", "prefill_worker"])
def test_a_requests_line_holds_no_credential_of_a_decision(stream: Written, named: str) -> None:
    log_json(stream)
    finish(a_remote_decision(**{named: "http://user:abcdef@host:8000"}), an_outcome())
    (line,) = lines(stream)
    assert line["served_model" if named == "model" else named] == "http://[redacted]@host:8000"


def test_the_console_shows_events_with_their_fields(stream: Written) -> None:
    stream.output = configure_logging(log_format=LogFormat.CONSOLE, level=LogLevel.INFO, stream=stream)
    finish(a_decision(), an_outcome())
    (line,) = stream.getvalue().splitlines()
    assert "request.finished" in line
    assert "path=local" in line
    assert "ttft_s=0.5" in line


def test_text_that_is_not_unicode_is_logged_all_the_same(stream: Written) -> None:
    log_json(stream)
    structlog.get_logger().info("file.unreadable", name="a\udcffb")
    finish(a_decision(), an_outcome(), model="a\udcffb")
    assert [line.get("name", line.get("model")) for line in lines(stream)] == ["a\udcffb"] * 2


def test_one_call_tells_metrics_decision_log_and_log_the_same(stream: Written) -> None:
    log_json(stream)
    metrics, decisions = Metrics(), DecisionLog(None)
    telemetry = RequestTelemetry(metrics=metrics, decisions=decisions, logger=structlog.get_logger().bind())
    decision = a_decision()
    telemetry.finished(decision, an_outcome(), request_id=decision.request_id, model="llama", decision_s=1e-4)
    telemetry.finished(None, a_failure(OutcomeKind.CLIENT_ERROR, status=400), request_id=RequestId("r-2"), model=None)
    shown = scrape(metrics)
    assert value(shown, "decision_seconds_count") == 1
    assert sum(sample.value for sample in shown["tidegate_requests"].samples) == 2
    record = decisions.get(decision.decision_id)
    assert record is not None
    assert record.decision == decision
    assert [(line["request_id"], line["outcome"]) for line in lines(stream)] == [
        ("r-1", "ok"),
        ("r-2", "client_error"),
    ]
