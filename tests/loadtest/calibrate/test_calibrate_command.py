"""`tidegate calibrate`, on emulated workers and on logs."""

from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.wire.decision_record import encode_record
from loadtest.calibrate.cli import calibrate
from loadtest.calibrate.refine import scaled
from loadtest.engine.engine_file import EngineFile, read_engine_file, write_engine_file
from loadtest.engine.presets import load_engine
from loadtest.fleet.processes import first_line, running
from loadtest.worker.config import WorkerConfig
from policy_store.costs.file import read_shipped
from tests.loadtest.calibrate.log_lab import simulated_log

NAME = "h100-llama8b"
BUDGET = 110


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, arguments)


def write_log(path: Path) -> None:
    spec, table = load_engine(NAME)
    path.write_bytes(b"".join(map(encode_record, simulated_log(spec, table, rate_rps=0.5))))


def write_base(path: Path, *, decode: float, prefill: float) -> None:
    costs = scaled(read_shipped(NAME), decode=decode, prefill=prefill)
    write_engine_file(EngineFile(limits=load_engine(NAME)[0], max_model_len=None, costs=costs), path)


@pytest.mark.e2e
def test_a_pair_is_calibrated_within_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configs = [WorkerConfig(name=name, engine=NAME, model="m", speed=4.0) for name in ("p", "d")]
    out, log = tmp_path / "found.json", tmp_path / "workers.log"
    arguments = ["loadtest.worker", "--config-json", msgspec.json.encode(configs).decode()]
    with running(arguments, log=log, pipe_output=True) as process:
        sender, worker = (each["url"] for each in first_line(process, log)["workers"])
        options = ["--url", f"{worker}/v1", "--prefill-url", sender, "--speed", "4", "--out", str(out)]
        result = run(monkeypatch, *options, "--requests", str(BUDGET), "--kv-bytes-per-token", "131072")
    assert result.exit_code == 0, result.output
    file, spec = read_engine_file(out), load_engine(NAME)[0]
    assert (file.limits.name, file.limits.block_tokens, file.limits.total_blocks) == (
        "found",
        spec.block_tokens,
        spec.total_blocks,
    )
    assert file.calibration is not None
    assert (file.calibration.model, file.calibration.failed_probes) == ("m", 0)
    assert file.calibration.requests <= BUDGET
    assert f"{file.calibration.requests} requests" in result.output
    assert "KV transfer rate" in result.output
    assert {found.term for found in file.costs.provenance.residuals} >= {"prefill", "decode", "transfer"}


def test_a_log_scales_the_base_and_the_trial_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, base, out = (tmp_path / name for name in ("log.jsonl", "base.json", "out.json"))
    write_log(log)
    write_base(base, decode=1.25, prefill=0.8)
    result = run(monkeypatch, "--from-log", str(log), "--base", str(base), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "held-out error before" in result.output
    assert len(read_engine_file(out).costs.provenance.notes) == len(read_engine_file(base).costs.provenance.notes) + 2


def test_a_log_without_requests_keeps_the_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out.json"
    log.write_text("")
    result = run(monkeypatch, "--from-log", str(log), "--base", NAME, "--out", str(out))
    assert result.exit_code == 1
    assert f"{NAME} is kept" in result.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --url, or --from-log"),
        (["--url", "http://h", "--from-log", "x"], "either --url, or --from-log"),
        (["--from-log", "x"], "either --url, or --from-log"),
        (["--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["--url", "ftp://h"], "not an http or https URL"),
        (["--from-log", "/no/such/log", "--base", NAME], "/no/such/log"),
        (["--from-log", "/dev/null", "--base", "abacus"], "no engine is called 'abacus'"),
        (["--from-log", "/dev/null", "--base", "/no/such.json"], "/no/such.json"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = run(monkeypatch, *arguments, "--out", str(tmp_path / "x.json"))
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
