import shutil
from pathlib import Path

import pytest

from gateway.core.health import HealthPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.path.table import TablePolicy
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT, Policy
from gateway.core.types import SloDefaults, SloTarget
from gateway.policies import build_policy, described_policy
from gateway.selection import select
from gateway.settings import SettingsError, load_settings
from policy_store.bundle import write_bundle
from policy_store.faults import BundleFault
from policy_store.store import FileStore
from tests.policy_store.bundle_factories import always, written
from tests.policy_store.output_length_factories import foretelling


def build(*overrides: str) -> Policy:
    return build_policy(load_settings(overrides=overrides))


def test_the_default_settings_are_the_built_in_policy() -> None:
    assert build() == Policy()


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["routing.policy=local"], AlwaysLocal()),
        (["routing.policy=remote"], AlwaysRemote()),
        (["routing.policy=llmd", "routing.llmd.non_cached_tokens=512"], LlmdRule(non_cached_tokens=512)),
        (
            ["routing.dynamo={policy: isl_or_load, eff_isl_threshold: 1, prefill_busy_threshold: 2}"],
            DynamoRule(mode=DynamoMode.ISL_OR_LOAD, eff_isl_threshold=1, prefill_busy_threshold=2.0),
        ),
        (
            ["routing.dynamo={eff_isl_ratio_threshold: 0.5, decode_busy_threshold: 0.9}"],
            DynamoRule(eff_isl_ratio_threshold=0.5, decode_busy_threshold=0.9),
        ),
    ],
    ids=["local", "remote", "llmd", "dynamo by either", "dynamo guarded"],
)
def test_each_path_policy_takes_its_own_keys(overrides: list[str], path: object) -> None:
    assert build(*overrides).path == path


def test_weights_replace_those_of_their_pool_only() -> None:
    policy = build("routing.decode_weights={kv_free: 2, queue_free: 1}")
    assert policy.decode_placement.weights == (("kv_free", 2.0), ("queue_free", 1.0))
    assert policy.prefill_placement == DEFAULT_PREFILL_PLACEMENT
    assert build("routing.prefill_weights={}").prefill_placement.weights == ()
    assert build("routing.prefill_weights={}").decode_placement == DEFAULT_DECODE_PLACEMENT


def test_a_bundles_predictor_reaches_the_policy_and_its_description_and_can_be_switched_off(tmp_path: Path) -> None:
    bundle = foretelling()
    store = FileStore(tmp_path / "store")
    store.activate(store.add(bundle))
    for source in (f"bundle={write_bundle(bundle, tmp_path)}", f"store={store.root}"):
        learned = ("routing.policy=learned", f"routing.{source}")
        on, off = build(*learned), build(*learned, "routing.output_length=false")
        for policy in (on, described_policy(on.description)):
            assert policy.output_length is not None
            assert bundle.output_length is not None
            assert policy.output_length.version == bundle.output_length.version
        assert off.output_length is described_policy(off.description).output_length is None
        assert (on.version, on.path) == (off.version, off.path)


def test_health_keys_reach_the_health_policy() -> None:
    policy = build("health={consecutive_failures: 2, open_s: 1, max_open_s: 3, max_ejected_ratio: 1, panic_ratio: 0}")
    assert policy.health == HealthPolicy(
        consecutive_failures=2, open_s=1.0, max_open_s=3.0, max_ejected_ratio=1.0, panic_ratio=0.0
    )


def test_slo_classes_and_models_reach_the_slo_defaults() -> None:
    policy = build(
        "slo.default={ttft_s: 1, tpot_s: null}",
        "slo.classes={fast: {tpot_s: 0.01}}",
        "slo.models={llama: fast}",
        "slo.objective=0.9",
    )
    assert policy.slo == SloDefaults(
        default=SloTarget(name="default", ttft_s=1.0, tpot_s=None),
        classes=(SloTarget(name="fast", ttft_s=None, tpot_s=0.01),),
        by_model=(("llama", "fast"),),
    )
    assert policy.slo_objective == 0.9


def test_one_bound_of_the_default_slo_leaves_the_other_as_it_was() -> None:
    assert build("slo.default.ttft_s=1").slo.default == SloTarget(name="default", ttft_s=1.0, tpot_s=0.04)


def test_bounds_of_index_and_samples_reach_the_policy() -> None:
    policy = build("routing.index_blocks_per_worker=5", "fleet.sample_max_age_s=3")
    assert (policy.index_blocks_per_worker, policy.sample_max_age_s) == (5, 3.0)


class TestLearned:
    def test_it_is_built_from_its_bundle_and_has_the_bundles_version(self, tmp_path: Path) -> None:
        directory = written(tmp_path)
        policy = build("routing.policy=learned", f"routing.bundle={directory}")
        assert isinstance(policy.path, TablePolicy)
        assert policy.version == directory.name
        assert policy.path.baseline == DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)

    def test_a_missing_bundle_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="nowhere"):
            build("routing.policy=learned", f"routing.bundle={tmp_path / 'nowhere'}")

    def test_a_bundle_of_another_rule_is_not_read(self, tmp_path: Path) -> None:
        assert build("routing.policy=local", f"routing.bundle={tmp_path}").version == "built-in"


class TestStore:
    """With a store, its active bundle decides, and Dynamo's rule where none is active."""

    @staticmethod
    def _build(store: FileStore, *overrides: str) -> Policy:
        return build("routing.policy=learned", f"routing.store={store.root}", *overrides)

    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        opened = FileStore(tmp_path / "store")
        opened.add(always("remote"))
        return opened

    def test_the_active_bundle_is_built_and_switched_off_again(self, store: FileStore) -> None:
        threshold = "routing.dynamo.eff_isl_threshold=7"
        assert self._build(store, threshold).path == DynamoRule(eff_isl_threshold=7)
        store.activate(always("remote").version)
        assert self._build(store).version == always("remote").version
        store.switch_off()
        off = self._build(store, threshold)
        assert (off.path, off.version) == (DynamoRule(eff_isl_threshold=7), "built-in")

    def test_a_policy_is_built_again_from_its_description_wherever_the_store_points_by_then(
        self, store: FileStore
    ) -> None:
        store.activate(always("remote").version)
        remote = self._build(store, "routing.decode_weights={kv_free: 2}")
        store.activate(store.add(always("local")))
        local = self._build(store)
        store.switch_off()
        off = self._build(store)
        assert [described_policy(policy.description) for policy in (remote, local, off)] == [remote, local, off]

    def test_a_store_or_a_bundle_that_cannot_be_used_is_named(self, store: FileStore, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="there is no policy store"):
            self._build(FileStore(tmp_path / "nowhere"))
        store.activate(always("remote").version)
        (store.directory(always("remote").version) / "path.json").write_bytes(b"")
        with pytest.raises(SettingsError, match=r"path\.json was truncated to 0"):
            self._build(store)

    def test_a_pointer_to_nothing_is_a_bundle_that_cannot_be_read(self, store: FileStore) -> None:
        store.activate(always("remote").version)
        shutil.rmtree(store.directory(always("remote").version))
        selected = select(load_settings(overrides=["routing.policy=learned", f"routing.store={store.root}"]).routing)
        assert selected.refusal is not None
        assert selected.refusal.fault is BundleFault.UNREADABLE
        assert selected.chosen.path == DynamoRule()


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("routing.decode_weights={cheapest: 1}", "unknown scorer 'cheapest'"),
        ("routing.prefill_weights={kv_free: -1}", "kv_free must be a finite number"),
        ("routing.prefill_weights={kv_free: .inf}", "kv_free must be a finite number"),
    ],
)
def test_weights_that_make_no_sense_are_refused(override: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        build(override)
