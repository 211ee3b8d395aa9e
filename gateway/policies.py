"""From settings to a policy.

The rule of this module: a policy is built wholly, or not at all with a reason that names the setting. What it was built
from is in its description, and building from that again needs no store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.core.conversation.rules import ConversationRules
from gateway.core.engine_costs import EngineCosts, EnginePower
from gateway.core.forecast import FleetCosts
from gateway.core.health import HealthPolicy
from gateway.core.output_length.carried import PromptReader
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.path.base import PathPolicy, PolicyError
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.placement import Placement
from gateway.core.policy import DEFAULT_DECODE_PLACEMENT, DEFAULT_PREFILL_PLACEMENT, Policy
from gateway.core.router import Router
from gateway.core.types import SloDefaults, SloTarget
from gateway.settings import Settings, SettingsError, SloClassSettings
from gateway.settings_routing import (
    ConversationSettings,
    DynamoSettings,
    EngineFileSettings,
    PowerSettings,
    RoutingSettings,
)
from policy_store.bundle import read_bundle
from policy_store.costs.engine import EnginePriceError, read_engine_costs
from policy_store.faults import BundleError, BundleFault, UnknownVersion
from policy_store.path_models import costs_of, to_policy
from policy_store.store import FileStore, Pointer

LEARNED_BASELINE = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
"""What a learned policy asks where it has no answer (methods.md 1.3: Dynamo's IslOrLoad)."""

BUILT_IN = "built-in"
"""The version of a rule that was not learned."""

DESCRIBED = {"routing", "health", "slo", "fleet"}
"""The sections that make a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPath:
    """A path policy, and the routing settings that say the same without a store."""

    path: PathPolicy
    costs: FleetCosts | None = None
    """What the fleet's engines take, as the bundle says."""
    output_length: OutputLengthModel | None = None
    """The bundle's; None where it has none."""
    version: str
    routing: RoutingSettings


def build_policy(settings: Settings, chosen: ChosenPath | None = None) -> Policy:
    """The policy that the settings describe; `chosen` is its path policy where that has been chosen before.

    Raises:
        SettingsError: a bundle cannot be used, or parameters make no sense together.
    """
    chosen = chosen or choose_path(settings.routing)
    described = settings.model_copy(update={"routing": chosen.routing})
    try:
        return Policy(
            version=chosen.version,
            description=described.model_dump_json(include=DESCRIBED),
            path=chosen.path,
            costs=chosen.costs or _engine_costs(settings.routing.engines),
            output_length=chosen.output_length if settings.routing.output_length else None,
            prefill_placement=_placement(settings.routing.prefill_weights, DEFAULT_PREFILL_PLACEMENT),
            decode_placement=_placement(settings.routing.decode_weights, DEFAULT_DECODE_PLACEMENT),
            conversation=_conversation(settings.routing.conversation),
            health=HealthPolicy(**settings.health.model_dump()),
            slo=_slo(settings),
            slo_objective=settings.slo.objective,
            sample_max_age_s=settings.fleet.sample_max_age_s,
            index_blocks_per_worker=settings.routing.index_blocks_per_worker,
            max_candidates=settings.routing.max_candidates,
            load_sample=settings.routing.load_sample,
            replicas=settings.routing.replicas,
            replica=settings.routing.replica,
            overflow_tokens=settings.routing.overflow_tokens,
        )
    except (EnginePriceError, PolicyError) as error:
        raise SettingsError(str(error)) from error


def _conversation(settings: ConversationSettings) -> ConversationRules:
    fields = settings.model_dump(exclude={"by_model", "headers", "fields"})
    return ConversationRules(**fields, by_model=tuple(settings.by_model.items()))


def choose_path(routing: RoutingSettings) -> ChosenPath:
    """The path policy of a routing section; where that follows a store, the store's active one.

    Raises:
        SettingsError: a bundle, or a store's pointer to it, cannot be used, or parameters make no sense together.
    """
    try:
        if routing.store is not None and routing.follows_store:
            store = FileStore(routing.store)
            return stored_path(routing, store, store.pointer())
        return _own_path(routing)
    except (BundleError, PolicyError) as error:
        raise SettingsError(str(error)) from error


def stored_path(routing: RoutingSettings, store: FileStore, pointer: Pointer | None) -> ChosenPath:
    """The path policy that a store's pointer says.

    Raises:
        BundleError: the bundle cannot be used.
    """
    if pointer is None or pointer.version is None:
        return baseline_path(routing)
    try:
        bundle = store.read(pointer.version)
        directory = store.directory(pointer.version)
    except UnknownVersion as error:
        raise BundleError(BundleFault.UNREADABLE, str(error)) from error
    return ChosenPath(
        path=to_policy(bundle.path, LEARNED_BASELINE),
        costs=costs_of(bundle.path),
        output_length=bundle.output_length,
        version=bundle.version,
        routing=routing.model_copy(update={"store": None, "bundle": directory}),
    )


def baseline_path(routing: RoutingSettings) -> ChosenPath:
    """What decides where a store is followed and has nothing to decide by: Dynamo's rule, as set."""
    return _own_path(routing.model_copy(update={"store": None, "policy": "dynamo"}))


def _own_path(routing: RoutingSettings) -> ChosenPath:
    version, costs, output_length = BUILT_IN, None, None
    match routing.policy:
        case "local":
            path: PathPolicy = AlwaysLocal()
        case "remote":
            path = AlwaysRemote()
        case "dynamo":
            path = _dynamo(routing.dynamo)
        case "llmd":
            path = LlmdRule(**routing.llmd.model_dump())
        case "learned":
            assert routing.bundle is not None
            bundle = read_bundle(routing.bundle)
            path, version = to_policy(bundle.path, LEARNED_BASELINE), bundle.version
            costs, output_length = costs_of(bundle.path), bundle.output_length
    return ChosenPath(path=path, costs=costs, output_length=output_length, version=version, routing=routing)


def _engine_costs(engines: EngineFileSettings) -> FleetCosts | None:
    """What the engine files say; one file alone stands for both pools."""
    prefill, decode = engines.prefill or engines.decode, engines.decode or engines.prefill
    if prefill is None or decode is None:
        return None
    return FleetCosts(
        prefill=_powered(read_engine_costs(prefill), engines.prefill_power),
        decode=_powered(read_engine_costs(decode), engines.decode_power),
    )


def _powered(costs: EngineCosts, power: PowerSettings | None) -> EngineCosts:
    return costs if power is None else replace(costs, power=EnginePower(**power.model_dump()))


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


def prompt_reader(router: Router) -> PromptReader | None:
    """What reads prompts for the policy that a router decides by now; None where that predicts no lengths."""
    model = router.policy.output_length
    return None if model is None else PromptReader(model=model, bytes_per_token=router.calibration.bytes_per_token)


def described_policy(description: str) -> Policy:
    """The policy that `Policy.description` describes.

    Raises:
        SettingsError: its bundle cannot be read any more.
    """
    return build_policy(Settings.model_validate_json(description))
