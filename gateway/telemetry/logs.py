"""Structured logs: events with fields, as JSON lines or for a terminal.

The rule of this module: every line of the process, the libraries' too, goes through one chain that ends in
redaction and rendering. There is one `request.finished` event per request, and no access log beside it.
"""

import json
import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gateway.core.types import Decision, Outcome, OutcomeKind, Refusal, RequestId
from gateway.telemetry.redaction import redact

REQUEST_FINISHED: Final = "request.finished"

QUIET_LOGGERS: Final = ("httpx", "httpcore")
"""They log every call at INFO; from these only warnings are of interest."""

_WORTH_A_WARNING: Final = frozenset({OutcomeKind.UPSTREAM_ERROR, OutcomeKind.TIMEOUT})


class LogFormat(StrEnum):
    """How a line is written."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least severe level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level as the standard library counts it."""
        return logging.getLevelNamesMapping()[self.name]


class StructlogHandler(logging.Handler):
    """Hands what libraries log to structlog's chain."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's message under its logger's name."""
        try:
            structlog.get_logger().log(
                _standard_level(record.levelno),
                record.getMessage(),
                logger=record.name,
                exc_info=record.exc_info,
            )
        except Exception:  # noqa: BLE001 - a handler must not raise into the code that logs
            self.handleError(record)


def configure_logging(*, log_format: LogFormat, level: LogLevel, stream: TextIO) -> None:
    """Set up structlog and the standard library's logging for the process, both onto `stream`.

    Pass `log_config=None` to uvicorn, or it will set up its own handlers afterwards.
    """
    structlog.configure(
        processors=_chain(log_format, is_terminal=stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level.number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _route_standard_library(level.number)


def finished_fields(
    routed: Decision | Refusal | None, outcome: Outcome, *, request_id: RequestId, model: str | None
) -> dict[str, Any]:
    """The fields of `request.finished`; what is not known is left out."""
    fields = {"request_id": request_id, "model": model, **_routed_fields(routed), **_outcome_fields(outcome)}
    return {name: value for name, value in fields.items() if value is not None}


def log_finished(
    logger: FilteringBoundLogger,
    routed: Decision | Refusal | None,
    outcome: Outcome,
    *,
    request_id: RequestId,
    model: str | None,
) -> None:
    """Log `request.finished`: a warning where a worker failed the request, else an information."""
    level = logging.WARNING if outcome.kind in _WORTH_A_WARNING else logging.INFO
    if logger.is_enabled_for(level):
        logger.log(level, REQUEST_FINISHED, **finished_fields(routed, outcome, request_id=request_id, model=model))


def _routed_fields(routed: Decision | Refusal | None) -> Mapping[str, Any]:
    match routed:
        case Decision():
            return {
                "decision_id": routed.decision_id,
                "served_model": routed.model,
                "attempt": routed.attempt,
                "path": routed.path,
                "reason": routed.reason,
                "prefill_worker": routed.prefill_worker,
                "decode_worker": routed.decode_worker,
                "slo": routed.slo.name,
            }
        case Refusal():
            return {"refused": routed.kind}
        case None:
            return {}


def _outcome_fields(outcome: Outcome) -> Mapping[str, Any]:
    return {
        "outcome": outcome.kind,
        "status": outcome.status,
        "duration_s": outcome.duration_s,
        "ttft_s": outcome.ttft_s,
        "tpot_s": outcome.tpot_s,
        "input_tokens": outcome.input_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        "slo_attained": outcome.attained,
    }


def _chain(log_format: LogFormat, *, is_terminal: bool) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Tracebacks become text here: the console's own formatter would print local variables, prompts among them.
        structlog.processors.format_exc_info,
        redact,
        _render_json if log_format is LogFormat.JSON else structlog.dev.ConsoleRenderer(colors=is_terminal),
    ]


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in an undecodable file name: only the slow encoder can write it.
        return json.dumps(event, default=str, separators=(",", ":"))


def _route_standard_library(level: int) -> None:
    root = logging.getLogger()
    root.handlers = [StructlogHandler()]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger("uvicorn.access").disabled = True
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _standard_level(level: int) -> int:
    # structlog knows the five standard levels only; uvicorn adds TRACE, others may add theirs.
    return min(max(level // 10 * 10, logging.DEBUG), logging.CRITICAL)
