"""A policy on its way to a live gateway: what `PUT /policy` of its admin application is told.

The rule of this module: a learned table goes as a bundle in a directory that the gateway can read; a rule goes as its
settings. What neither can say is refused here, never left out.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.core.path.base import PathPolicy
from gateway.core.path.regime import RegimePolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule, LlmdRule
from gateway.core.path.table import TablePolicy
from policy_store.bundle import new_bundle, write_bundle
from policy_store.path_models import model_of


class CannotPublish(Exception):  # noqa: N818 (named after what is the case)
    """No settings and no bundle say the same as the policy."""


def routing_of(policy: PathPolicy, bundles: Path) -> Mapping[str, Any]:
    """The routing settings that make the policy; a learned one's bundle is written below `bundles`.

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
            bundle = new_bundle(model_of(policy), provenance={"made_by": "loadtest.learning"})
            return {"policy": "learned", "bundle": str(write_bundle(bundle, bundles).resolve())}
        case _:
            raise CannotPublish(f"neither settings nor a bundle of a table say what the policy {policy.name} does")
