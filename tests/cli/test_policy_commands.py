"""`tidegate policy`: what it prints, and how it says no."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from policy_store.bundle import PATH_PART, write_bundle
from policy_store.store import FileStore
from tests.policy_store.bundle_factories import always, table
from tests.policy_store.output_length_factories import predictor_folder

LOCAL, REMOTE = always("local"), always("remote", provenance={"trace": "mooncake"})

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `tidegate policy` on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    return lambda *arguments: CliRunner().invoke(app, ["policy", *(str(argument) for argument in arguments)])


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Two bundles; nothing is active."""
    opened = FileStore(tmp_path / "store")
    for each in (LOCAL, REMOTE):
        opened.add(each)
    return opened


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_bundle_is_added_activated_rolled_back_and_switched_off(run: Run, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new" / "store")
    at = ("--store", store.root)
    for each in (LOCAL, REMOTE):
        assert run("add", write_bundle(each, tmp_path), *at).stdout == f"{each.version}\n"
    assert f"active: {LOCAL.version} since " in run("activate", LOCAL.version, *at).stdout
    assert run("activate", REMOTE.version, *at).stdout.endswith(f"; a roll-back goes to {LOCAL.version}\n")
    assert f"active: {LOCAL.version}" in run("rollback", *at).stdout
    off = run("off", *at)
    assert (off.exit_code, off.stdout.count("\n")) == (0, 1)
    assert "gateways decide by their built-in rule" in off.stdout
    assert store.active() is None


def test_a_models_file_becomes_a_bundle_with_its_notes(run: Run, store: FileStore, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps(msgspec.to_builtins(table())))
    added = run("add", file, "--store", store.root, "--note", "learned_from=a trace", "--note", "by=me")
    bundle = store.read(added.stdout.strip())
    assert bundle.path == table()
    assert bundle.manifest.provenance == {"learned_from": "a trace", "by": "me"}
    assert store.active() is None


def test_the_list_shows_what_is_active_what_was_and_what_is_refused(run: Run, store: FileStore) -> None:
    empty = run("list", "--store", store.root).stdout
    assert "nothing was activated yet" in empty
    store.activate(REMOTE.version)
    store.activate(LOCAL.version)
    (store.directory(REMOTE.version) / PATH_PART).write_bytes(b"{}")
    listed = run("list", "--store", store.root)
    assert listed.exit_code == 0
    rows = [line for line in listed.stdout.splitlines() if line.startswith("│")]
    lines = {version: row for row in rows for version in store.versions() if version in row.split("│")[1]}
    assert "active" in lines[LOCAL.version]
    assert "table" in lines[LOCAL.version]
    assert "earlier" in lines[REMOTE.version]
    assert "refused" in lines[REMOTE.version]
    assert f"active: {LOCAL.version}" in listed.stdout


def test_show_prints_the_active_bundle_or_the_one_that_is_named(run: Run, store: FileStore) -> None:
    store.activate(LOCAL.version)
    active, named = run("show", "--store", store.root), run("show", REMOTE.version, "--store", store.root)
    assert f"Policy bundle {LOCAL.version}" in active.stdout
    assert f"Policy bundle {REMOTE.version}" in named.stdout
    for words in ("isl_tokens, prefill_isl_tokens", "mooncake", "path.json", "SHA-256", '"kind": "table"'):
        assert words in named.stdout


def test_the_store_may_come_from_the_settings(run: Run, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list", "--set", f"routing.store={store.root}").exit_code == 0
    monkeypatch.setenv("TIDEGATE_ROUTING__STORE", str(store.root))
    assert run("activate", LOCAL.version).exit_code == 0
    assert store.active() == LOCAL.version


def test_a_bad_bundle_is_neither_added_nor_activated(run: Run, store: FileStore, tmp_path: Path) -> None:
    directory = write_bundle(always("remote", provenance={}), tmp_path)
    (directory / PATH_PART).write_bytes(b"")
    refused(run("add", directory, "--store", store.root), "path.json was truncated to 0 of")
    store.activate(LOCAL.version)
    (store.directory(REMOTE.version) / PATH_PART).unlink()
    refused(run("activate", REMOTE.version, "--store", store.root), "path.json is missing")
    assert store.active() == LOCAL.version


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"kind": "table"}', "not a path policy's model"),
        ('{"kind": "oracle"}', "not a path policy's model"),
        (json.dumps(msgspec.to_builtins(table()) | {"max_decode_kv_ratio": float("nan")}), "is not a finite number"),
        (json.dumps(msgspec.to_builtins(table()) | {"actions": ["local"]}), "1 actions for 2 clusters"),
    ],
)
def test_a_models_file_that_makes_no_sense_is_named(
    run: Run, store: FileStore, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "model.json"
    file.write_text(content)
    result = run("add", file, "--store", store.root)
    refused(result, words)
    assert str(file) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["activate", "0" * 12], "has no bundle 000000000000"),
        (["activate", "../channels"], "has no bundle ../channels"),
        (["show", "0" * 12], "has no bundle"),
        (["show"], "has no active bundle; name a version"),
        (["rollback"], "has no earlier version to roll back to"),
        (["add", "/no/such/bundle"], "cannot read /no/such/bundle"),
        (["add", "/no/such/bundle", "--note", "text"], "--note takes name=text"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(run: Run, store: FileStore, arguments: list[str], words: str) -> None:
    refused(run(*arguments, "--store", store.root), words)


def test_a_directory_keeps_its_own_provenance(run: Run, store: FileStore, tmp_path: Path) -> None:
    result = run("add", write_bundle(LOCAL, tmp_path), "--note", "by=me", "--store", store.root)
    refused(result, "has its own provenance")


@pytest.mark.parametrize("command", ["list", "show", "rollback", "off"])
def test_a_store_that_is_not_there_or_not_named_is_told(run: Run, tmp_path: Path, command: str) -> None:
    nowhere = tmp_path / "nowhere"
    result = run(command, "--store", nowhere)
    assert result.exit_code == 2
    assert str(nowhere) in result.stderr
    assert not nowhere.exists()
    refused(run(command), "which policy store? Give --store, or set routing.store")


@pytest.mark.parametrize("as_bundle", [False, True], ids=["model", "bundle"])
def test_a_predictor_is_put_into_a_bundle_and_shown(
    run: Run, store: FileStore, tmp_path: Path, as_bundle: bool
) -> None:
    source = write_bundle(LOCAL, tmp_path) if as_bundle else tmp_path / "model.json"
    if not as_bundle:
        source.write_text(json.dumps(msgspec.to_builtins(table())))
    folder = predictor_folder(tmp_path)
    version = run("add", source, "--output-length", folder, "--store", store.root).stdout.strip()
    added = store.read(version)
    assert added.output_length is not None
    assert added.path == (LOCAL.path if as_bundle else table())
    assert added.manifest.provenance == (LOCAL.manifest.provenance if as_bundle else {})
    shown = run("show", version, "--store", store.root).stdout
    assert f"predictor {added.output_length.version}, learned from m" in shown
    assert "output_length/log_length.ubj" in shown
    assert "predictor " not in run("show", LOCAL.version, "--store", store.root).stdout


def test_trees_that_lie_under_other_names_are_put_in_all_the_same(run: Run, store: FileStore, tmp_path: Path) -> None:
    folder = predictor_folder(tmp_path)
    (folder / "log_length.ubj").rename(folder / "output_length.log_length.ubj")
    json_file = folder / "output_length.json"
    json_file.write_bytes(json_file.read_bytes().replace(b'"log_length.ubj"', b'"output_length.log_length.ubj"'))
    source = write_bundle(LOCAL, tmp_path)
    version = run("add", source, "--output-length", folder, "--store", store.root).stdout.strip()
    assert store.read(version).output_length is not None


def test_a_predictor_that_does_not_check_out_is_not_added(run: Run, store: FileStore, tmp_path: Path) -> None:
    source, folder = write_bundle(LOCAL, tmp_path), predictor_folder(tmp_path)
    refused(run("add", source, "--output-length", tmp_path / "nowhere", "--store", store.root), "cannot read")
    (folder / "log_length.ubj").write_bytes(b"{}")
    refused(run("add", source, "--output-length", folder, "--store", store.root), "not the file")
    assert len(store.versions()) == 2
