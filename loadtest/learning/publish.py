"""A policy on its way to a live gateway: what `PUT /policy` of its admin application is told.

The rule of this module: a learned policy goes as a bundle in a directory that the gateway can read; a rule goes as its
settings. What neither can say is refused here, never left out.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule, LlmdRule
from gateway.core.path.table import TablePolicy
from policy_store.bundle import new_bundle, write_bundle
from policy_store.path_models import model_of


class CannotPublish(Exception):  # noqa: N818 (named after what is the case)
    """No settings and no bundle say the same as the policy."""


def routing_of(policy: PathPolicy, bundles: Path, costs: FleetCosts | None = None) -> Mapping[str, Any]:
    """The routing settings that make the policy; a learned one's bundle is written below `bundles`.

    Args:
        policy: what shall decide. What a bundle's policy falls back to is the gateway's own choice, and not said here.
        bundles: a directory that is there.
        costs: what the fleet's engines take, in the gateway's seconds; a policy by price needs them.

    Raises:
        CannotPublish: nothing says the same.
        OSError: the bundle cannot be written.
    """
    match policy:
        case AlwaysLocal():
            return {"policy": "local"}
        case AlwaysRemote():
            return {"policy": "remote"}
        case DynamoRule():
            keys = {key: value for key, value in asdict(policy).items() if key not in ("mode", "name")}
            return {"policy": "dynamo", "dynamo": {"policy": policy.mode.value, **keys}}
        case LlmdRule():
            keys = {"non_cached_tokens": policy.non_cached_tokens, "prompt_tokens": policy.prompt_tokens}
            return {"policy": "llmd", "llmd": keys}
        case TablePolicy() | RegimePolicy():
            return _bundled(policy, bundles, None)
        case PricedPolicy() | JointPolicy() if costs is not None:
            return _bundled(policy, bundles, costs)
        case _:
            raise CannotPublish(f"neither settings nor a bundle say what the policy {policy.name} does")


def _bundled(policy: PathPolicy, bundles: Path, costs: FleetCosts | None) -> Mapping[str, Any]:
    bundle = new_bundle(model_of(policy, costs), provenance={"made_by": "loadtest.learning"})
    return {"policy": "learned", "bundle": str(write_bundle(bundle, bundles).resolve())}
