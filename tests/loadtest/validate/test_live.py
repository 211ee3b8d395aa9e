import pytest
import typer
from typer.testing import CliRunner

from loadtest.client.records import Record
from loadtest.fleet.pools import Pools
from loadtest.validate import live
from loadtest.validate.live import Comparison, LiveRun, agreement, agreement_words, compared, comparison_table
from loadtest.validate.live_runs import Setup


def setup(policy: str = "dynamo") -> Setup:
    return Setup(
        trace="synthetic:mooncake",
        pools=Pools(prefill=2, decode=2),
        engine="h100-llama8b",
        policy=policy,
        requests=20,
        rate_scale=1.0,
        speed=4.0,
    )


def record(
    index: int, *, path: str = "local", worker: str = "decode-0", ttft_s: float = 1.0, ok: bool = True
) -> Record:
    return Record(
        request_id=f"live-{index}",
        index=index,
        scheduled_s=float(index),
        lag_s=0.02,
        ok=ok,
        ttft_s=ttft_s if ok else None,
        tpot_s=0.02 if ok else None,
        path=path,
        worker=worker,
    )


def records(*others: Record, ttft_s: float = 1.0) -> list[Record]:
    """Twenty, of which some are replaced."""
    by_index = {each.index: each for each in others}
    return [by_index.get(index, record(index, ttft_s=ttft_s)) for index in range(20)]


@pytest.mark.parametrize(("simulated_s", "holds"), [(0.91, True), (1.09, True), (0.89, False), (1.11, False)])
def test_a_percentile_holds_within_a_tenth_of_the_live_one(simulated_s: float, holds: bool) -> None:
    assert Comparison(metric="ttft_s", percentile=50, live_s=1.0, simulated_s=simulated_s).holds is holds


def test_median_and_tail_of_both_metrics_are_compared() -> None:
    live_records = [record(index, ttft_s=float(index)) for index in range(11)]
    simulated = [record(index, ttft_s=index + 1.0) for index in range(11)]
    one = compared(setup(), live_records, simulated)
    assert [(each.metric, each.percentile) for each in one.comparisons] == [
        ("ttft_s", 50),
        ("ttft_s", 90),
        ("tpot_s", 50),
        ("tpot_s", 90),
    ]
    assert [(each.live_s, each.simulated_s) for each in one.comparisons[:2]] == [(5.0, 6.0), (9.0, 10.0)]
    assert one.comparisons[0].error == pytest.approx(0.2)


@pytest.mark.parametrize(("others", "holds"), [(1, True), (2, False)])
def test_nineteen_of_twenty_paths_must_agree(others: int, holds: bool) -> None:
    changed = [record(index, path="remote") for index in range(others)]
    found = agreement(records(), records(*changed))
    assert (found.requests, found.same_path, found.failed) == (20, 20 - others, 0)
    assert found.holds is holds


def test_requests_are_paired_by_their_place_in_the_trace() -> None:
    assert agreement(records(), records()[::-1]).same_path == 20


def test_the_first_that_differs_is_the_earliest() -> None:
    found = agreement(records()[::-1], records(record(7, path="remote"), record(12, path="remote")))
    assert found.first_other_path is not None
    live_one, simulated = found.first_other_path
    assert (live_one.index, live_one.path, simulated.path) == (7, "local", "remote")
    assert agreement(records(), records()).first_other_path is None


def test_workers_are_counted_where_the_path_is_the_same() -> None:
    changed = [record(0, worker="decode-1"), record(1, path="remote", worker="decode-1")]
    found = agreement(records(), records(*changed))
    assert (found.same_path, found.same_worker) == (19, 18)


def test_what_failed_or_is_missing_does_not_agree() -> None:
    found = agreement(records(record(3, ok=False))[:-1], records())
    assert (found.requests, found.same_path, found.failed) == (20, 18, 2)


def test_words_say_where_the_runs_part() -> None:
    apart = compared(setup(), records(), records(record(7, path="remote")))
    assert "of 20 requests 19 took the same path, 19 of these to the same decode worker; 0 failed" in agreement_words(
        apart
    )
    assert "request 7 at 7.0 s: live local, simulated remote" in agreement_words(apart)
    assert "first to differ" not in agreement_words(compared(setup(), records(), records()))


def command(monkeypatch: pytest.MonkeyPatch, simulated: list[Record], *arguments: str) -> tuple[int, str, list[Setup]]:
    monkeypatch.setenv("COLUMNS", "120")
    asked: list[Setup] = []

    def run(one: Setup) -> LiveRun:
        asked.append(one)
        return compared(one, records(), simulated)

    monkeypatch.setattr(live, "run", run)
    app = typer.Typer()
    app.command()(live.main)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output, asked


def test_the_command_prints_every_bound_of_every_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    status, printed, asked = command(monkeypatch, records())
    assert status == 0
    assert [one.policy for one in asked] == ["dynamo", "local", "remote"]
    assert printed.count("TTFT P90, ms") == 3
    assert printed.count("100.0%") == 3
    assert "NO" not in printed


@pytest.mark.parametrize(
    "simulated",
    [records(ttft_s=1.2), records(*(record(index, path="remote") for index in range(2)))],
    ids=["latency", "paths"],
)
def test_the_command_fails_where_a_bound_is_missed(monkeypatch: pytest.MonkeyPatch, simulated: list[Record]) -> None:
    status, printed, asked = command(monkeypatch, simulated, "--policy", "local", "--speed", "8")
    assert status == 1
    assert "NO" in printed
    assert [(one.policy, one.speed) for one in asked] == [("local", 8.0)]


def test_the_table_has_a_row_a_bound() -> None:
    assert comparison_table([compared(setup(), records(), records())] * 2).row_count == 2 * 5


def test_what_cannot_be_is_one_message() -> None:
    app = typer.Typer()
    app.command()(live.main)
    for arguments, words in ((["--pools", "2X"], "2P2D or 4A"), (["--trace", "nothing:x"], "unknown trace")):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert words in result.output
