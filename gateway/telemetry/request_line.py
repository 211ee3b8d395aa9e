"""The log line of a request that has ended, made at the cost of its encoding.

The rule of this module: a line says the same as the chain of `gateway.telemetry.logs` would write, in the same order.
It skips that chain because its fields are the gateway's own; those with text from outside are looked through for
credentials, and where one could be there, the line is redacted as any other.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging import INFO, WARNING
from typing import Any, Final

import msgspec

from gateway.core.types import Decision, Outcome, OutcomeKind, Refusal, RequestId
from gateway.telemetry.redaction import may_hold_credential, redact

REQUEST_FINISHED: Final = "request.finished"

_WORTH_A_WARNING: Final = frozenset({OutcomeKind.UPSTREAM_ERROR, OutcomeKind.TIMEOUT})

_DIGITS: Final = tuple(f"{number:03d}" for number in range(1000))


def level_of(outcome: Outcome) -> int:
    """A warning where a worker failed the request, else an information; as the standard library counts levels."""
    return WARNING if outcome.kind in _WORTH_A_WARNING else INFO


def finished_fields(
    routed: Decision | Refusal | None, outcome: Outcome, *, request_id: RequestId, model: str | None
) -> dict[str, Any]:
    """The fields of `request.finished`; what is not known is left out."""
    fields = {"request_id": request_id, "model": model, **_routed_fields(routed), **_outcome_fields(outcome)}
    return {name: value for name, value in fields.items() if value is not None}


def to_json(event: Mapping[str, Any]) -> bytes:
    """The event as one JSON object, without a newline."""
    try:
        return msgspec.json.encode(event, enc_hook=str)
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in an undecodable file name: only the slow encoder can write it.
        return json.dumps(event, default=str, separators=(",", ":")).encode()


class RequestLines:
    """Writes one JSON line per request to `put`, where `level` lets it through.

    `process` is in every line, first; `wall_clock` gives seconds since 1970.
    """

    __slots__ = ("_encode", "_level", "_process", "_put", "_second", "_second_text", "_wall_clock")

    def __init__(
        self,
        put: Callable[[bytes], None],
        *,
        level: int,
        process: int | str | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._put: Final = put
        self._level: Final = level
        self._process: Final = process
        self._wall_clock: Final = wall_clock
        self._encode: Final = msgspec.json.Encoder().encode
        self._second = -1
        self._second_text = ""

    def finished(
        self, routed: Decision | Refusal | None, outcome: Outcome, request_id: RequestId, model: str | None
    ) -> None:
        """Write the line of a request that has just ended."""
        level = level_of(outcome)
        if level < self._level:
            return
        name = "info" if level == INFO else "warning"
        if isinstance(routed, Decision) and not may_hold_credential(
            f"{request_id}{model}{routed.model}{routed.prefill_worker}{routed.decode_worker}"
        ):
            try:
                self._put(self._encode(self._line(routed, outcome, request_id, model, name)) + b"\n")
            except UnicodeEncodeError:
                pass
            else:
                return
        self._put(self._slowly(routed, outcome, request_id, model, name) + b"\n")

    def _line(
        self, decision: Decision, outcome: Outcome, request_id: RequestId, model: str | None, level: str
    ) -> "_Line":
        # By position: keywords go through a dictionary.
        return _Line(
            self._process,
            request_id,
            model,
            decision.decision_id,
            decision.model,
            decision.attempt,
            decision.path,
            decision.reason,
            decision.prefill_worker,
            decision.decode_worker,
            decision.slo.name,
            outcome.kind,
            outcome.status,
            outcome.duration_s,
            outcome.ttft_s,
            outcome.tpot_s,
            outcome.input_tokens,
            outcome.cached_tokens,
            outcome.output_tokens,
            outcome.attained,
            REQUEST_FINISHED,
            level,
            self._timestamp(),
        )

    def _slowly(
        self,
        routed: Decision | Refusal | None,
        outcome: Outcome,
        request_id: RequestId,
        model: str | None,
        level: str,
    ) -> bytes:
        fields = finished_fields(routed, outcome, request_id=request_id, model=model)
        named = {} if self._process is None else {"process": self._process}
        event = {**named, **fields, "event": REQUEST_FINISHED, "level": level, "timestamp": self._timestamp()}
        return to_json(redact(None, level, event))

    def _timestamp(self) -> str:
        now_s = self._wall_clock()
        second = int(now_s)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        micros = int((now_s - second) * 1e6)
        return f"{self._second_text}.{_DIGITS[micros // 1000]}{_DIGITS[micros % 1000]}Z"


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The line of a routed request, in the order of its fields; the last three never have their defaults."""

    process: int | str | None = None
    request_id: str = ""
    model: str | None = None
    decision_id: str = ""
    served_model: str = ""
    attempt: int | None = None
    path: str = ""
    reason: str = ""
    prefill_worker: str | None = None
    decode_worker: str = ""
    slo: str | None = None
    outcome: str = ""
    status: int | None = None
    duration_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    slo_attained: bool | None = None
    event: str = ""
    level: str = ""
    timestamp: str = ""


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
