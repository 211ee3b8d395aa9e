"""The tables, and what is left out of them."""

from loadtest.plane.report import markdown, summary, tables
from loadtest.plane.rivals import VLLM_ROUTER
from loadtest.plane.scenarios import PLAIN
from tests.loadtest.plane.plane_lab import OURS, good_report, sample, stream_memory


def test_cpu_time_stands_beside_both_others() -> None:
    told = tables(good_report())
    assert "| tidegate auto | 100.0 [100.0, 100.0] | 1.50 [1.50, 1.50] | 0.25 [0.25, 0.25] |" in told
    assert "single, plain requests, 32 clients" in told


def test_latency_is_told_whole_and_added() -> None:
    told = tables(good_report())
    assert "| direct | 200 [200, 200] | - |" in told
    assert "| nginx | 400 [400, 400] | 200 [200, 200] |" in told


def test_memory_that_was_not_measured_is_a_dash() -> None:
    told = tables(good_report(memory=[stream_memory(OURS, 8.0, streams=1000)]))
    assert "| tidegate auto | 8.0 [8.0, 8.0] | - |" in told


def test_gaps_stand_beside_bare_hops() -> None:
    assert "| tidegate auto | 150 / 750 / 885 | 40 / 40 / 40 |" in tables(good_report())


def test_what_was_not_run_has_no_table() -> None:
    told = tables(good_report(samples=[sample(PLAIN.name, OURS, cpu_us=1.0)], memory=[], hand_overs=[]))
    assert told.count("| proxy |") == 1


def test_a_table_is_markdown() -> None:
    assert markdown(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --: |\n| 1 | 2 |"


def test_what_was_skipped_is_told() -> None:
    report = good_report(proxies=[OURS], skipped=["nginx: not in PATH"])
    assert summary(report) == [
        "skipped: nginx: not in PATH",
        f"without {VLLM_ROUTER} what is claimed beside it is not judged",
    ]
    assert summary(good_report()) == []
