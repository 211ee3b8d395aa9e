"""From settings to a policy.

The rule of this module: a policy is built wholly, or not at all with a reason that names the setting.
"""

from collections.abc import Mapping

from gateway.core.health import HealthPolicy
from gateway.core.path.base import PathPolicy, PolicyError
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.placement import Placement
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT, Policy
from gateway.core.types import SloDefaults, SloTarget
from gateway.settings import DynamoSettings, RoutingSettings, Settings, SettingsError, SloClassSettings
from policy_store.bundle import BundleError, read_bundle, table_policy

TABLE_BASELINE = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
"""What a table falls back to (methods.md 1.3: Dynamo's IslOrLoad)."""

DESCRIBED = {"routing", "health", "slo", "fleet"}
"""The sections that make a policy."""


def build_policy(settings: Settings) -> Policy:
    """The policy that the settings describe.

    Raises:
        SettingsError: a bundle cannot be read, or parameters make no sense together.
    """
    try:
        path, version = _path_policy(settings.routing)
        return Policy(
            version=version,
            description=settings.model_dump_json(include=DESCRIBED),
            path=path,
            prefill_placement=_placement(settings.routing.prefill_weights, DEFAULT_PREFILL_PLACEMENT),
            decode_placement=_placement(settings.routing.decode_weights, DEFAULT_DECODE_PLACEMENT),
            health=HealthPolicy(**settings.health.model_dump()),
            slo=_slo(settings),
            slo_objective=settings.slo.objective,
            sample_max_age_s=settings.fleet.sample_max_age_s,
            index_blocks_per_worker=settings.routing.index_blocks_per_worker,
        )
    except (BundleError, PolicyError) as error:
        raise SettingsError(str(error)) from error


def _path_policy(routing: RoutingSettings) -> tuple[PathPolicy, str]:
    match routing.policy:
        case "local":
            return AlwaysLocal(), "built-in"
        case "remote":
            return AlwaysRemote(), "built-in"
        case "dynamo":
            return _dynamo(routing.dynamo), "built-in"
        case "llmd":
            return LlmdRule(**routing.llmd.model_dump()), "built-in"
        case "table":
            assert routing.table.bundle is not None
            bundle = read_bundle(routing.table.bundle)
            return table_policy(bundle, TABLE_BASELINE), bundle.version


def _dynamo(settings: DynamoSettings) -> DynamoRule:
    keys = settings.model_dump()
    return DynamoRule(mode=keys.pop("policy"), **keys)


def _placement(weights: Mapping[str, float] | None, default: Placement) -> Placement:
    return default if weights is None else Placement(weights=tuple(weights.items()))


def _slo(settings: Settings) -> SloDefaults:
    slo = settings.slo
    return SloDefaults(
        default=_target("default", slo.default),
        classes=tuple(_target(name, bounds) for name, bounds in slo.classes.items()),
        by_model=tuple(slo.models.items()),
    )


def _target(name: str, bounds: SloClassSettings) -> SloTarget:
    return SloTarget(name=name, ttft_s=bounds.ttft_s, tpot_s=bounds.tpot_s)


def described_policy(description: str) -> Policy:
    """The policy that `Policy.description` describes.

    Raises:
        SettingsError: its bundle cannot be read any more.
    """
    return build_policy(Settings.model_validate_json(description))
