from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.client.records import Record, read_records, scaled, write_records

seconds = st.none() | st.floats(0, 1e6)
counts = st.none() | st.integers(0, 10**6)
names = st.none() | st.text(max_size=20)
records = st.builds(
    Record,
    request_id=st.text(max_size=20),
    index=st.integers(0, 10**6),
    scheduled_s=st.floats(0, 1e6),
    sent_s=seconds,
    lag_s=seconds,
    status=counts,
    ok=st.booleans(),
    error=names,
    input_tokens=counts,
    ttft_s=seconds,
    tpot_s=seconds,
    itl_count=st.integers(0, 10**6),
    e2e_s=seconds,
    path=names,
    worker=names,
)


@given(written=st.lists(records, max_size=5))
def test_records_survive_the_file(written: list[Record], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("out") / "records.jsonl"
    write_records(path, written)
    assert read_records(path) == written


def test_unknown_values_take_no_room_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, [Record(request_id="a", index=0, scheduled_s=0.5)])
    assert path.read_text() == '{"request_id":"a","index":0,"scheduled_s":0.5}\n'


def test_a_line_that_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"index": 0}\n')
    with pytest.raises(msgspec.ValidationError, match="request_id"):
        read_records(path)


def test_scaling_multiplies_every_time_and_nothing_else() -> None:
    record = Record(
        request_id="a", index=7, scheduled_s=1.0, sent_s=1.5, lag_s=0.5, status=200, ok=True, input_tokens=10,
        output_tokens=3, cached_tokens=2, ttft_s=2.0, tpot_s=0.25, itl_max_s=0.5, itl_p99_s=0.25, itl_count=2,
        e2e_s=4.0, path="local", worker="w", policy="p", decision_id="d",
    )  # fmt: skip
    assert scaled(record, 4.0) == msgspec.structs.replace(
        record, scheduled_s=4.0, sent_s=6.0, lag_s=2.0, ttft_s=8.0, tpot_s=1.0, itl_max_s=2.0, itl_p99_s=1.0, e2e_s=16.0
    )


def test_scaling_leaves_unknown_times_unknown() -> None:
    record = Record(request_id="a", index=0, scheduled_s=1.0)
    assert scaled(record, 2.0) == Record(request_id="a", index=0, scheduled_s=2.0)


def test_the_kind_of_an_error_is_what_stands_before_its_detail() -> None:
    record = Record(request_id="a", index=0, scheduled_s=0.0, error="http_503: overloaded: later")
    assert record.error_kind == "http_503"
    assert not record.cancelled
    assert msgspec.structs.replace(record, error="cancelled").cancelled
    assert msgspec.structs.replace(record, error=None).error_kind is None
