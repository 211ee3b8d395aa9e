"""The command line: what it prints, and how it says no."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from gateway import __version__, cli
from gateway.api.auth import Identity, Keyring
from gateway.cli import app
from gateway.settings import Settings
from policy_store.bundle import write_bundle
from tests.policy_store.output_length_factories import foretelling

WIDE = {"COLUMNS": "200", "TERM": "dumb"}

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line on a wide terminal; the process's logging stays as it is."""
    for name, value in WIDE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gateway.commands.serve.configure_logging", lambda **_: None)

    def invoke(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return invoke


@pytest.fixture
def request_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a chat request of so many characters to a file."""

    def write(prompt_chars: int = 20_000, **fields: Any) -> Path:
        body = {"model": "llama", "messages": [{"role": "user", "content": "x" * prompt_chars}], **fields}
        path = tmp_path / "request.json"
        path.write_text(json.dumps(body))
        return path

    return write


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tidegate.yaml"
    path.write_text(text)
    return path


# -- version and help ------------------------------------------------------------------------------------------------


def test_version_prints_the_version(run: Run) -> None:
    result = run("version")
    assert (result.exit_code, result.stdout) == (0, f"{__version__}\n")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert all(command in result.output for command in ("serve", "check", "explain", "version"))


# -- check -----------------------------------------------------------------------------------------------------------


def test_check_prints_the_whole_tree_as_json_and_names_the_policy(run: Run, tmp_path: Path) -> None:
    file = config(tmp_path, "workers: [{id: a, url: 'http://a:1'}]\nrouting: {policy: llmd}\n")
    result = run("check", "--config", file, "--set", "server.port=9000")
    assert result.exit_code == 0
    tree = json.loads(result.stdout)
    assert tree.keys() == Settings.model_fields.keys()
    assert (tree["routing"]["policy"], tree["server"]["port"]) == ("llmd", 9000)
    assert result.stderr == "ok: policy llmd (built-in), 1 workers\n"


def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config(tmp_path, "server: {port: 1, host: file, max_body_bytes: 2048}\n")
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "2")
    monkeypatch.setenv("TIDEGATE_SERVER__HOST", "env")
    tree = json.loads(run("check", "-c", file, "--set", "server.port=3").stdout)
    assert (tree["server"]["port"], tree["server"]["host"], tree["server"]["max_body_bytes"]) == (3, "env", 2048)


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("server.port=99999", "server.port"),
        ("routing.policy=magic", "routing.policy"),
        ("server.nonsense=1", "server.nonsense"),
        ("upstream.decode.connect_timeout_s=-1", "upstream.decode.connect_timeout_s"),
        ("routing.decode_weights={nonsense: 1}", "nonsense"),
        ("workers=[{id: a, url: 'http://a:99999'}]", "workers.a.url"),
        ("server", "--set takes section.field=value"),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_name_and_status_2(
    run: Run, command: str, override: str, field: str
) -> None:
    result = run(command, "--set", override)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert field in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "words"),
    [("[1, 2]", "mapping"), ("server: {", "not YAML"), ("server: {port: many}", "server.port")],
)
def test_a_wrong_settings_file_is_one_message(run: Run, tmp_path: Path, content: str, words: str) -> None:
    result = run("check", "--config", config(tmp_path, content))
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_message_is_not_broken_into_lines_of_a_terminals_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    result = run("check", "--config", "/no/such/file.yaml")
    assert result.stderr.count("\n") == 1


def test_a_missing_settings_file_is_one_message(run: Run) -> None:
    result = run("check", "--config", "/no/such/file.yaml")
    assert result.exit_code == 2
    assert result.stderr == "error: cannot read /no/such/file.yaml: No such file or directory\n"


def test_serve_without_a_place_for_its_journal_is_one_message(run: Run) -> None:
    result = run("serve", "--set", "telemetry.journal=/no/such/folder/journal")
    assert result.exit_code == 2
    assert result.stderr == "error: [Errno 2] No such file or directory: '/no/such/folder/journal'\n"


def test_serve_will_not_write_over_a_journal(run: Run, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text("mine")
    result = run("serve", "--set", f"telemetry.journal={journal}")
    assert result.exit_code == 2
    assert "File exists" in result.stderr
    assert journal.read_text() == "mine"


@pytest.mark.parametrize(("arguments", "workers"), [(["--workers", "3"], 3), (["--set", "server.workers=2"], 2)])
def test_serve_with_several_processes_is_their_parent_and_has_its_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], workers: int
) -> None:
    told: list[Any] = []

    def serve_together(settings: Settings, **options: Any) -> int:
        told.append((settings.server.workers, options["overrides"]))
        return 1

    monkeypatch.setattr("gateway.commands.processes.parent.serve_together", serve_together)
    monkeypatch.setattr("gateway.commands.serve.serve", lambda *_, **__: pytest.fail("it serves itself"))
    assert run("serve", *arguments).exit_code == 1
    assert told == [(workers, [f"server.workers={workers}"])]


def test_serve_alone_has_no_parent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("gateway.commands.serve.serve", lambda settings, **_: served.append(settings))
    assert run("serve").exit_code == 0
    assert [settings.server.workers for settings in served] == [1]


@pytest.mark.parametrize(
    "override", ["routing.policy=magic", "routing.decode_weights={nonsense: 1}", "server.workers=0"]
)
def test_what_is_wrong_is_said_before_any_process_is_started(run: Run, override: str) -> None:
    result = run("serve", "--set", "server.port=0", "--set", "server.workers=2", "--set", override)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_prints_every_part_of_a_remote_decision(run: Run, request_file: Callable[..., Path]) -> None:
    result = run("explain", "--request", request_file(), "--set", "routing.policy=remote")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "remote prefill: prefill on prefill-" in text
    assert ", decode on decode-" in text
    assert "because the policy is always remote" in text
    assert "policy remote (built-in), reason always_remote" in text
    assert "What the policy saw" in text
    for row in (
        "prompt (ISL)",
        "uncached on the prefill worker",
        "uncached on the decode worker",
        "predicted output (OSL)",
        "cluster",
        "SLO (default)",
    ):
        assert row in text
    assert "TTFT 2 s, TPOT 0.04 s" in text
    prefill, decode = text.split("Prefill pool")[1].split("Decode pool")
    assert all(name in prefill for name in ("prefill-0", "prefill-1", "prefill_work", "few_requests", "total"))
    assert all(name in decode for name in ("decode-0", "decode-1", "prefix_hit", "total"))


def test_explain_says_where_the_expected_output_comes_from(
    run: Run, request_file: Callable[..., Path], tmp_path: Path
) -> None:
    learned = ("--set", "routing.policy=learned", "--set", f"routing.bundle={write_bundle(foretelling(), tmp_path)}")
    request = request_file()
    assert "tokens, predicted by the model" in run("explain", "--request", request, *learned).stdout
    off = run("explain", "--request", request, *learned, "--set", "routing.output_length=false").stdout
    assert "256 tokens, the model's mean" in off


def test_explain_of_a_local_decision_shows_only_the_decode_pool(run: Run, request_file: Callable[..., Path]) -> None:
    result = run("explain", "--request", request_file(prompt_chars=5), "--set", "routing.policy=remote")
    assert "local prefill: decode on decode-" in result.stdout
    assert "local by rule" in result.stdout
    assert "Prefill pool" not in result.stdout


def test_explain_as_json_is_the_decision_itself(run: Run, request_file: Callable[..., Path]) -> None:
    file = request_file()
    result = run("explain", "--request", file, "--json", "--set", "routing.policy=remote")
    decision = json.loads(result.stdout)
    assert decision["path"] == "remote"
    assert decision["model"] == "llama"
    assert decision["features"]["isl_tokens"] > 4000
    assert len(decision["decode_candidates"]) == 2
    again = run("explain", "--request", file, "--json", "--set", "routing.policy=remote")
    assert again.stdout == result.stdout


def test_explain_reads_standard_input_headers_and_the_endpoint(run: Run) -> None:
    result = run(
        "explain",
        "--request",
        "-",
        "--endpoint",
        "completions",
        "--header",
        "X-Session-Id: abc",
        "--header",
        "x-slo-ttft-ms:250",
        "--json",
        stdin=json.dumps({"model": "llama", "prompt": list(range(100))}).encode(),
    )
    assert result.exit_code == 0, result.output
    decision = json.loads(result.stdout)
    assert decision["pinned"] is True
    assert decision["slo"]["ttft_s"] == 0.25
    assert decision["features"]["isl_tokens"] == 100


def test_explain_says_that_a_session_pin_chose(run: Run, request_file: Callable[..., Path]) -> None:
    result = run("explain", "--request", request_file(), "--header", "x-session-id: abc")
    assert ", where its conversation lives" in result.stdout


def test_explain_uses_the_configured_fleet(run: Run, request_file: Callable[..., Path], tmp_path: Path) -> None:
    file = config(tmp_path, "workers: [{id: solo, url: 'http://solo:1', models: [llama]}]\n")
    result = run("explain", "--request", request_file(), "--config", file)
    assert "decode on solo" in result.stdout
    assert "no healthy prefill worker" in result.stdout


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"messages": []}, "messages"), ({"model": 5}, "model"), ({"max_tokens": -1}, "max_tokens")],
)
def test_a_request_that_cannot_be_read_is_one_message_and_status_2(
    run: Run, request_file: Callable[..., Path], fields: dict[str, Any], words: str
) -> None:
    result = run("explain", "--request", request_file(**fields))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr


def test_a_refused_request_is_one_message_and_status_2(
    run: Run, request_file: Callable[..., Path], tmp_path: Path
) -> None:
    file = config(tmp_path, "workers: [{id: solo, url: 'http://solo:1', models: [other]}]\n")
    result = run("explain", "--request", request_file(), "--config", file)
    assert result.exit_code == 2
    assert result.stderr == "error: The model `llama` does not exist.\n"


@pytest.mark.parametrize("arguments", [["--header", "nonsense"], ["--set", "routing.policy=magic"]])
def test_a_wrong_option_of_explain_is_one_message(
    run: Run, request_file: Callable[..., Path], arguments: list[str]
) -> None:
    result = run("explain", "--request", request_file(), *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_missing_request_file_is_one_message(run: Run) -> None:
    result = run("explain", "--request", "/no/such/request.json")
    assert result.exit_code == 2
    assert "/no/such/request.json" in result.stderr


# -- the commands of the load test -----------------------------------------------------------------------------------


def test_the_load_tests_commands_are_part_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = typer.Typer()
    monkeypatch.setattr("gateway.cli.app", bare)
    cli._add_load_commands()
    names = {command.name for command in bare.registered_commands}
    assert {"demo", "fleet", "loadtest", "replay"} <= names


# -- keys and health -------------------------------------------------------------------------------------------------


def test_a_new_key_is_printed_once_with_the_line_that_lets_it_in(run: Run) -> None:
    result = run("key", "new", "--name", "ops", "--scope", "data", "--scope", "admin")
    assert result.exit_code == 0
    key, line = result.stdout.splitlines()
    assert key not in line
    (entry,) = yaml.safe_load(line)
    settings = Settings(auth={"keys": [entry]})
    identity = Keyring(settings.auth.keys).authenticate(f"Bearer {key}".encode(), None)
    assert identity == Identity(name="ops", scopes=frozenset({"data", "admin"}))


def test_a_new_key_opens_the_data_routes_where_nothing_is_said(run: Run) -> None:
    first, second = (run("key", "new").stdout.splitlines() for _ in range(2))
    assert first[0] != second[0]
    assert yaml.safe_load(first[1])[0]["scopes"] == ["data"]


def test_a_scope_that_is_none_is_refused(run: Run) -> None:
    assert run("key", "new", "--scope", "everything").exit_code == 2


@pytest.mark.parametrize(("status", "exit_code"), [(0, 0), (1, 1)])
def test_a_health_check_ends_with_what_the_gateway_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, status: int, exit_code: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("gateway.cli.ask", lambda url: asked.append(url) or status)
    assert run("healthcheck", "--url", "http://127.0.0.1:9/readyz").exit_code == exit_code
    assert run("healthcheck").exit_code == exit_code
    assert asked == ["http://127.0.0.1:9/readyz", "http://127.0.0.1:8080/livez"]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("admin: {host: 0.0.0.0}\n", "admin.host: 0.0.0.0 can be reached from elsewhere"),
        ("sidecar: {allow: ['a b']}\n", "sidecar.allow: 'a b'"),
        ("endpoints: [{id: e, local_url: 'http://h:0', remote_url: 'http://h'}]\n", "endpoints.e.local_url"),
    ],
)
def test_check_says_what_serve_would_refuse(run: Run, tmp_path: Path, tree: str, words: str) -> None:
    result = run("check", "--config", config(tmp_path, tree))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
