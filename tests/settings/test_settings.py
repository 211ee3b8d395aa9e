from pathlib import Path
from typing import Any

import pytest

from gateway.core.types import Role
from gateway.settings import Settings, SettingsError, load_settings

YAML = """
server:
  port: 9001
  host: 0.0.0.0
workers:
  - id: p0
    url: http://10.0.0.1:8000
    role: prefill
  - id: d0
    url: http://10.0.0.2:8000
    role: decode
    models: [llama, sql-adapter]
    kv_block_tokens: 16
routing:
  policy: dynamo
  dynamo: {policy: isl_or_load, prefill_busy_threshold: 1.5}
  decode_weights: {kv_free: 2, prefix_hit: 1}
slo:
  classes:
    fast: {ttft_s: 0.2, tpot_s: 0.01}
  models: {llama: fast}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tidegate.yaml"
    path.write_text(YAML)
    return path


def wrong(*overrides: str, file: Path | None = None) -> list[str]:
    """The lines of the error that these settings cause."""
    with pytest.raises(SettingsError) as refused:
        load_settings(file, overrides=overrides)
    return str(refused.value).splitlines()


class TestPrecedence:
    def test_defaults_need_no_file(self) -> None:
        settings = load_settings()
        assert (settings.server.port, settings.routing.policy, settings.workers) == (8080, "dynamo", ())

    def test_the_file_wins_over_defaults(self, file: Path) -> None:
        assert load_settings(file).server.port == 9001

    def test_the_environment_wins_over_the_file(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_SERVER__PORT", "9002")
        settings = load_settings(file)
        assert (settings.server.port, settings.server.host) == (9002, "0.0.0.0")

    def test_a_flag_wins_over_the_environment(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_SERVER__PORT", "9002")
        settings = load_settings(file, overrides=["server.port=9003"])
        assert (settings.server.port, settings.server.host) == (9003, "0.0.0.0")

    def test_the_last_of_equal_flags_wins(self) -> None:
        assert load_settings(overrides=["server.port=1", "server.port=2"]).server.port == 2

    def test_sections_are_merged_field_by_field(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_ROUTING__DYNAMO__EFF_ISL_THRESHOLD", "512")
        dynamo = load_settings(file, overrides=["routing.dynamo.decode_busy_threshold=0.9"]).routing.dynamo
        assert (dynamo.policy, dynamo.prefill_busy_threshold) == ("isl_or_load", 1.5)
        assert (dynamo.eff_isl_threshold, dynamo.decode_busy_threshold) == (512, 0.9)

    def test_one_load_leaves_nothing_for_the_next(self, file: Path) -> None:
        load_settings(file, overrides=["server.port=1"])
        assert load_settings().server.port == 8080

    def test_lists_and_mappings_are_json_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_WORKERS", '[{"id": "w0", "url": "http://w0:8000"}]')
        monkeypatch.setenv("TIDEGATE_ROUTING__DECODE_WEIGHTS", '{"kv_free": 1}')
        settings = load_settings()
        assert [worker.id for worker in settings.workers] == ["w0"]
        assert settings.routing.decode_weights == {"kv_free": 1.0}

    def test_flags_are_yaml_values(self) -> None:
        settings = load_settings(
            overrides=[
                "upstream.decode.idle_timeout_s=null",
                "routing.conversation.headers=[x-a, x-b]",
                "server.host='1'",
            ]
        )
        assert settings.upstream.decode.idle_timeout_s is None
        assert settings.routing.conversation.headers == ("x-a", "x-b")
        assert settings.server.host == "1"


class TestFile:
    def test_workers_are_read_with_their_defaults(self, file: Path) -> None:
        prefill, decode = load_settings(file).workers
        assert (prefill.id, prefill.role, prefill.models, prefill.kv_block_tokens) == ("p0", Role.PREFILL, None, None)
        assert (decode.role, decode.models, decode.kv_block_tokens) == (Role.DECODE, ("llama", "sql-adapter"), 16)

    def test_a_worker_without_a_role_is_both(self) -> None:
        settings = load_settings(overrides=["workers=[{id: w0, url: 'http://w0:8000'}]"])
        assert settings.workers[0].role is Role.BOTH

    def test_nested_mappings_are_read(self, file: Path) -> None:
        settings = load_settings(file)
        assert settings.slo.classes["fast"].ttft_s == 0.2
        assert settings.routing.decode_weights == {"kv_free": 2.0, "prefix_hit": 1.0}

    def test_an_empty_file_is_all_defaults(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty.yaml"
        empty.write_text("# nothing yet\n")
        assert load_settings(empty).model_dump() == load_settings().model_dump()

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        (line,) = wrong(file=tmp_path / "nowhere.yaml")
        assert "nowhere.yaml" in line
        assert "No such file" in line

    @pytest.mark.parametrize("content", [b"server: [", b"a: b: c", b"\x80\x81", b"a: \x00"])
    def test_a_file_that_is_no_yaml_is_named(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "bad.yaml"
        file.write_bytes(content)
        assert "bad.yaml is not YAML" in wrong(file=file)[0]

    @pytest.mark.parametrize("content", ["- a\n- b\n", "just text", "7"])
    def test_a_file_without_sections_is_refused(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "list.yaml"
        file.write_text(content)
        assert "must hold a mapping of sections" in wrong(file=file)[0]


class TestMistakes:
    @pytest.mark.parametrize(
        ("override", "named"),
        [
            ("server.prot=1", "server.prot"),
            ("severs.port=1", "severs"),
            ("routing.dynamo.threshold=1", "routing.dynamo.threshold"),
            ("workers=[{id: w0, url: 'http://w:1', rôle: decode}]", "workers.0.rôle"),
            ("slo.classes={fast: {ttft: 1}}", "slo.classes.fast.ttft"),
        ],
    )
    def test_an_unknown_field_is_named(self, override: str, named: str) -> None:
        (line,) = wrong(override)
        assert line.startswith(f"{named}: ")

    def test_an_unknown_field_in_the_environment_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_SERVER__PROT", "1")
        assert wrong()[0].startswith("server.prot: ")

    @pytest.mark.parametrize(
        ("override", "named"),
        [
            ("server.port=65536", "server.port"),
            ("server.port=http", "server.port"),
            ("fleet.probe_interval_s=0", "fleet.probe_interval_s"),
            ("fleet.probe_interval_s=.nan", "fleet.probe_interval_s"),
            ("routing.policy=random", "routing.policy"),
            ("routing.dynamo.eff_isl_ratio_threshold=1.1", "routing.dynamo.eff_isl_ratio_threshold"),
            ("health.consecutive_failures=0", "health.consecutive_failures"),
            ("slo.objective=1", "slo.objective"),
            ("upstream.max_attempts=0", "upstream.max_attempts"),
            ("telemetry.log_level=loud", "telemetry.log_level"),
            ("workers=[{id: '-w', url: 'http://w:1'}]", "workers.0.id"),
            ("workers=[{id: w, url: 'ftp://w'}]", "workers.0.url"),
            ("workers=[{id: w, url: 'http://w', role: router}]", "workers.0.role"),
            ("workers=[{url: 'http://w'}]", "workers.0.id"),
        ],
    )
    def test_a_value_out_of_range_is_named(self, override: str, named: str) -> None:
        assert wrong(override)[0].startswith(f"{named}: ")

    def test_every_mistake_has_its_line(self) -> None:
        lines = wrong("server.port=-1", "server.prot=1", "slo.objective=2")
        assert [line.partition(":")[0] for line in lines] == ["server.port", "server.prot", "slo.objective"]

    def test_a_value_that_is_no_json_in_the_environment_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_WORKERS", "[{")
        assert wrong()[0].startswith("environment: ")

    @pytest.mark.parametrize("override", ["server", "server.port", "=1", "server.=1", ""])
    def test_a_flag_without_field_and_value_is_refused(self, override: str) -> None:
        assert "section.field=value" in wrong(override)[0]

    def test_a_flag_below_a_value_is_refused(self) -> None:
        assert "server is set to a value already" in wrong("server=3", "server.port=1")[0]

    def test_a_flag_that_is_no_yaml_is_refused(self) -> None:
        assert "not YAML" in wrong("server.port=[1")[0]


class TestCrossChecks:
    def test_workers_need_ids_of_their_own(self) -> None:
        workers = ", ".join(f"{{id: {name}, url: 'http://w:1'}}" for name in ("a", "b", "a"))
        (line,) = wrong(f"workers=[{workers}]")
        assert "workers share an id: a" in line

    def test_a_model_needs_a_class_that_exists(self) -> None:
        (line,) = wrong("slo.models={llama: slow}")
        assert "slo.models refers to unknown classes: slow" in line

    def test_a_learned_policy_needs_a_bundle_or_a_store_but_not_both(self) -> None:
        assert "needs bundle or store" in wrong("routing.policy=learned")[0]
        assert "either bundle or store" in wrong("routing.policy=learned", "routing.bundle=a", "routing.store=b")[0]
        assert load_settings(overrides=["routing.policy=learned", "routing.bundle=a"]).routing.follows_store is False
        assert load_settings(overrides=["routing.policy=local", "routing.store=a"]).routing.follows_store is False
        assert load_settings(overrides=["routing.policy=learned", "routing.store=a"]).routing.follows_store is True

    def test_the_rule_that_stands_in_for_a_store_must_be_whole(self) -> None:
        learned = ["routing.policy=learned", "routing.dynamo.policy=prefill_load"]
        assert "needs dynamo.prefill_busy_threshold" in wrong(*learned, "routing.store=a")[0]
        assert load_settings(overrides=[*learned, "routing.bundle=a"]).routing.policy == "learned"

    @pytest.mark.parametrize("mode", ["prefill_load", "isl_or_load"])
    def test_dynamos_load_policies_need_a_threshold(self, mode: str) -> None:
        assert "needs dynamo.prefill_busy_threshold" in wrong(f"routing.dynamo.policy={mode}")[0]
        settings = load_settings(overrides=[f"routing.dynamo.policy={mode}", "routing.dynamo.prefill_busy_threshold=0"])
        assert settings.routing.dynamo.prefill_busy_threshold == 0.0

    def test_a_rule_that_is_not_used_may_be_half_set(self) -> None:
        settings = load_settings(overrides=["routing.policy=local", "routing.dynamo.policy=prefill_load"])
        assert settings.routing.policy == "local"


def test_the_tree_is_frozen() -> None:
    settings = load_settings()
    changes: list[tuple[Any, str]] = [
        (settings, "server"),
        (settings.server, "port"),
        (settings.routing.dynamo, "policy"),
    ]
    for section, name in changes:
        with pytest.raises(ValueError, match="frozen"):
            setattr(section, name, None)


def test_what_is_loaded_is_a_settings_tree() -> None:
    assert isinstance(load_settings(), Settings)
