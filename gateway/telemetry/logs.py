"""Structured logs: events with fields, as JSON lines or for a terminal.

The rule of this module: every line of the process, the libraries' too, goes through one chain that ends in
redaction and rendering. There is one `request.finished` event per request, and no access log beside it; as JSON,
`gateway.telemetry.request_line` makes that line without the chain, for what it costs.
"""

import atexit
import logging
from enum import StrEnum
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gateway.core.types import Decision, Outcome, Refusal, RequestId
from gateway.telemetry.log_stream import LogStream
from gateway.telemetry.redaction import redact
from gateway.telemetry.request_line import REQUEST_FINISHED, RequestLines, finished_fields, level_of, to_json

QUIET_LOGGERS: Final = ("httpx", "httpcore")
"""They log every call at INFO; from these only warnings are of interest."""


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


def configure_logging(
    *, log_format: LogFormat, level: LogLevel, stream: TextIO, process: int | str | None = None
) -> LogStream:
    """Set up structlog and the standard library's logging for the process, both onto `stream`.

    Pass `log_config=None` to uvicorn, or it will set up its own handlers afterwards. `process` is in every line: which
    of several this one is.

    Returns:
        What all lines go through. It is closed as the interpreter exits; whoever ends the process in another way closes
        it before.
    """
    output = LogStream(stream)
    atexit.register(output.close)
    is_json = log_format is LogFormat.JSON
    request_lines = RequestLines(output.put, level=level.number, process=process) if is_json else None
    structlog.configure(
        processors=[*_naming(process), *_chain(log_format, is_terminal=stream.isatty())],
        wrapper_class=_logger_class(level.number, request_lines),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", output)),
        cache_logger_on_first_use=False,
    )
    _route_standard_library(level.number)
    return output


def log_finished(
    logger: FilteringBoundLogger,
    routed: Decision | Refusal | None,
    outcome: Outcome,
    *,
    request_id: RequestId,
    model: str | None,
) -> None:
    """Log `request.finished`: a warning where a worker failed the request, else an information."""
    lines: RequestLines | None = getattr(logger, "request_lines", None)
    if lines is not None:
        lines.finished(routed, outcome, request_id, model)
        return
    level = level_of(outcome)
    if logger.is_enabled_for(level):
        logger.log(level, REQUEST_FINISHED, **finished_fields(routed, outcome, request_id=request_id, model=model))


def _naming(process: int | str | None) -> list[Processor]:
    def name(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"process": process, **event}

    return [] if process is None else [name]


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
    return to_json(event).decode()


def _logger_class(level: int, request_lines: RequestLines | None) -> type[FilteringBoundLogger]:
    filtering = structlog.make_filtering_bound_logger(level)
    return type(filtering.__name__, (filtering,), {"request_lines": request_lines})


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
