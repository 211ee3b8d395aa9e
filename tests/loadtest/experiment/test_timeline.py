import pytest

from loadtest.client.records import Record
from loadtest.experiment.run import watch_cell
from loadtest.experiment.timeline import Span, SpanKind, Timeline
from tests.loadtest.experiment.experiment_lab import first_run


def watched(policy: str, until_s: float | None = None) -> tuple[Timeline, dict[str, Record]]:
    outcome, timeline = watch_cell(first_run(policies={"p": policy}, until_s=until_s))
    return timeline, {record.request_id: record for record in outcome.records}


def by_request(timeline: Timeline) -> dict[str, dict[SpanKind, Span]]:
    found: dict[str, dict[SpanKind, Span]] = {}
    for span in timeline.spans:
        found.setdefault(span.request_id, {})[span.kind] = span
    return found


def test_a_remote_request_goes_from_prefill_over_the_link_to_decode_without_a_gap() -> None:
    timeline, records = watched("remote")
    assert timeline.workers == ("prefill-0", "decode-0")
    for request_id, spans in by_request(timeline).items():
        prefill, transfer, decode = (spans[kind] for kind in SpanKind)
        record = records[request_id]
        assert (prefill.worker, transfer.worker, decode.worker) == (0, 1, 1)
        assert prefill.began_s == record.scheduled_s
        assert prefill.ended_s == transfer.began_s < transfer.ended_s == decode.began_s
        assert decode.ended_s == pytest.approx(record.scheduled_s + (record.e2e_s or 0.0))
    assert len(records) == 30


def test_a_transfer_takes_the_links_time() -> None:
    timeline, _ = watched("remote")
    transfers = [span for span in timeline.spans if span.kind is SpanKind.TRANSFER]
    # 2 ms at least, and the whole of Llama 8B's 131,072 bytes per token over 50 GB/s once the link is free.
    assert all(span.ended_s - span.began_s >= 0.002 for span in transfers)
    longest = max(transfers, key=lambda span: span.input_tokens)
    assert longest.ended_s - longest.began_s > 0.5 * longest.input_tokens * 131_072 / 50e9


def test_a_local_request_stays_where_it_is() -> None:
    timeline, records = watched("local")
    for request_id, spans in by_request(timeline).items():
        assert set(spans) == {SpanKind.PREFILL, SpanKind.DECODE}
        prefill, decode = spans[SpanKind.PREFILL], spans[SpanKind.DECODE]
        assert prefill.worker == decode.worker == 1
        assert prefill.ended_s - prefill.began_s == records[request_id].ttft_s


def test_a_run_that_is_stopped_ends_its_spans() -> None:
    timeline, records = watched("remote", until_s=4.0)
    assert all(span.ended_s <= 4.0 for span in timeline.spans)
    assert any(record.cancelled for record in records.values())
    assert {span.request_id for span in timeline.spans} == set(records)


def test_workers_are_sampled_at_every_scrape() -> None:
    prefill, decode = watched("remote")[0].series
    assert prefill.at_s == decode.at_s == [float(second) for second in range(1, len(prefill.at_s) + 1)]
    assert max(prefill.waiting) > 0
    assert max(decode.running) > 1
    assert 0.0 < max(decode.kv_used_ratio) <= 1.0
