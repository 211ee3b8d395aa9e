"""The decision log: one record per request, readable by training, explainable by id."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.types import Decision, DecisionId, Outcome, OutcomeKind, Refusal, RefusalKind, RequestId
from gateway.telemetry.decisions import DecisionLog, read_decision_log
from gateway.wire.decision_record import (
    DecisionLogError,
    DecisionRecord,
    RecordEncoder,
    decode_record,
    decode_records,
    encode_record,
)
from tests.telemetry.telemetry_factories import (
    a_decision,
    a_failure,
    a_refusal,
    a_remote_decision,
    an_outcome,
)

GOLDEN_LINE = (
    b'{"schema":1,"request_id":"r-1","arrived_at_s":996.0,"model":"llama","decision":{"decision_id":"d-1",'
    b'"request_id":"r-1","model":"llama","attempt":1,"path":"remote","prefill_worker":"prefill-0",'
    b'"decode_worker":"decode-0","policy":"isl","policy_version":"7","reason":"long_effective_isl",'
    b'"words":"512 uncached tokens are below 1,000","propensity":0.9,"cluster":null,"pinned":false,'
    b'"features":{"isl_tokens":1000,"prefill_isl_tokens":750,"decode_isl_tokens":512,"osl_tokens":200.0},'
    b'"prefill_hit_tokens":250,"decode_hit_tokens":488,"slo":{"name":"chat","ttft_s":1.7,"tpot_s":0.055},"outlook":null,'
    b'"osl_predicted":false,"conversation":null,"turn":null,'
    b'"prefill_candidates":[],"decode_candidates":[{"worker_id":"decode-0","scores":[["queue",0.75],'
    b'["prefix",0.5]],"total":0.625}]},"refusal":null,"outcome":{"kind":"ok","status":200,"duration_s":4.0,'
    b'"ttft_s":0.5,"tpot_s":0.03,"input_tokens":1000,"cached_tokens":250,"output_tokens":120,'
    b'"attained":true,"response_id":null}}\n'
)
"""A line of schema version 1: what this release must be able to read."""

Ending = tuple[Decision | Refusal | None, Outcome]


def a_record(**changes: object) -> DecisionRecord:
    values: dict[str, object] = {
        "request_id": "r-1",
        "arrived_at_s": 996.0,
        "model": "llama",
        "decision": a_remote_decision(),
        "outcome": an_outcome(),
    }
    return DecisionRecord(**(values | changes))  # type: ignore[arg-type]


def endings() -> Iterator[Ending]:
    """Every way for a request to end."""
    for kind in OutcomeKind:
        yield a_decision(), a_failure(kind)
    for refusal in RefusalKind:
        yield a_refusal(refusal), a_failure(OutcomeKind.REFUSED)
    yield None, a_failure(OutcomeKind.CLIENT_ERROR)


def append(log: DecisionLog, number: int, routed: Decision | Refusal | None, outcome: Outcome) -> None:
    log.append(routed, outcome, request_id=RequestId(f"r-{number}"), model="llama")


def test_golden_line_is_read_as_written() -> None:
    assert decode_record(GOLDEN_LINE) == a_record()
    assert encode_record(a_record()) == GOLDEN_LINE


def test_a_short_record_after_a_long_one_is_whole() -> None:
    encoder = RecordEncoder()
    short = a_record(decision=None, refusal=a_refusal())
    for record in (short, a_record(), short, a_record()):
        assert encoder.encode(record) == encode_record(record)
        assert decode_record(encoder.encode(record)) == record


@pytest.mark.parametrize("later", [b'"conversation":null,"turn":null,', b',"response_id":null'])
def test_a_line_of_a_release_that_knew_less_is_read(later: bytes) -> None:
    line = GOLDEN_LINE.replace(later, b"")
    assert line != GOLDEN_LINE
    assert decode_record(line) == a_record()


def test_fields_of_a_later_release_are_ignored() -> None:
    line = GOLDEN_LINE.replace(b'"request_id"', b'"added":{"x":1},"request_id"')
    assert decode_record(line) == a_record()


def test_another_schema_version_is_refused() -> None:
    line = GOLDEN_LINE.replace(b'"schema":1', b'"schema":2')
    with pytest.raises(DecisionLogError, match=r"line 2: schema version 2, this release reads 1"):
        list(decode_records([GOLDEN_LINE, line]))


@pytest.mark.parametrize("cut", [1, 40, len(GOLDEN_LINE) // 2, len(GOLDEN_LINE) - 2])
def test_a_torn_last_line_is_skipped(cut: int) -> None:
    assert list(decode_records([GOLDEN_LINE, GOLDEN_LINE[:cut]])) == [a_record()]


def test_a_whole_last_line_without_its_newline_is_read() -> None:
    assert list(decode_records([GOLDEN_LINE.rstrip()])) == [a_record()]


def test_a_broken_line_elsewhere_is_an_error_with_its_number() -> None:
    lines = [GOLDEN_LINE, GOLDEN_LINE[:40] + b"\n", GOLDEN_LINE]
    with pytest.raises(DecisionLogError, match=r"^line 2: "):
        list(decode_records(lines))


def test_every_request_has_exactly_one_record_however_it_ended(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    expected = list(endings())
    for number, (routed, outcome) in enumerate(expected):
        append(log, number, routed, outcome)
    log.close()
    records = list(read_decision_log(tmp_path / "decisions.jsonl"))
    assert [record.request_id for record in records] == [f"r-{number}" for number in range(len(expected))]
    assert [(record.decision or record.refusal, record.outcome) for record in records] == expected
    assert (log.written, log.dropped) == (len(expected), 0)


def test_arrival_is_on_the_wall_clock(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log", wall_clock=lambda: 1000.0)
    append(log, 0, a_decision(), an_outcome(duration_s=4.0))
    log.close()
    assert [record.arrived_at_s for record in read_decision_log(tmp_path / "log")] == [996.0]


def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(5):
        log = DecisionLog(path, max_bytes=2 * len(GOLDEN_LINE) + 100, keep_files=10)
        append(log, number, a_remote_decision(), an_outcome())
        log.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert [record.request_id for record in read_decision_log(path)] == [f"r-{number}" for number in range(5)]


def test_records_go_on_after_a_crash_cut_one_short(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(GOLDEN_LINE + GOLDEN_LINE[:50])
    log = DecisionLog(path)
    append(log, 2, a_decision(), an_outcome())
    log.close()
    assert [record.request_id for record in read_decision_log(path)] == ["r-1", "r-2"]


def test_a_missing_log_has_no_records(tmp_path: Path) -> None:
    assert list(read_decision_log(tmp_path / "none")) == []


def test_a_full_queue_drops_records_but_explains_them(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log", queue_records=2)
    for number in range(3):
        append(log, number, a_decision(decision_id=DecisionId(f"d-{number}")), an_outcome())
    newest = log.get(DecisionId("d-2"))
    log.close()
    assert (log.written, log.dropped) == (2, 1)
    assert newest is not None
    assert newest.request_id == "r-2"


def test_decisions_are_explained_by_id_until_newer_ones_push_them_out() -> None:
    log = DecisionLog(None, ring_records=2, wall_clock=lambda: 1000.0)
    for number in range(3):
        append(log, number, a_decision(decision_id=DecisionId(f"d-{number}")), an_outcome())
    assert log.get(DecisionId("d-0")) is None
    explained = log.get(DecisionId("d-1"))
    assert explained is not None
    assert explained.decision == a_decision(decision_id=DecisionId("d-1"))
    assert explained.outcome == an_outcome()


def test_refusals_take_no_room_from_decisions() -> None:
    log = DecisionLog(None, ring_records=1)
    append(log, 0, a_decision(), an_outcome())
    append(log, 1, a_refusal(), a_failure(OutcomeKind.REFUSED))
    assert log.get(DecisionId("d-1")) is not None


def test_without_a_file_nothing_is_written_or_dropped() -> None:
    log = DecisionLog(None)
    log.start()
    append(log, 0, a_decision(), an_outcome())
    log.close()
    assert (log.written, log.dropped) == (0, 0)


def test_what_was_recorded_before_the_close_is_on_disk_after_it(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    log.start()
    for number in range(200):
        append(log, number, a_decision(), an_outcome())
    log.close()
    ids = [record.request_id for record in read_decision_log(tmp_path / "log")]
    assert ids == [f"r-{number}" for number in range(200)]
