"""What was learned, as bundles that a gateway can serve.

The rule of this module: a bundle lies below `policies` of the comparison's directory, and says what it was learned by.
"""

from pathlib import Path

from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathPolicy
from policy_store.bundle import new_bundle, write_bundle
from policy_store.path_models import model_of


def keep_policy(out: Path, policy: PathPolicy, costs: FleetCosts | None, *, learned: str, name: str) -> str:
    """Write the bundle of a policy; its version.

    Args:
        out: the comparison's directory.
        policy: what was learned.
        costs: the engines that it counts with.
        learned: by which command, and where.
        name: of its arm.
    """
    bundle = new_bundle(model_of(policy, costs), provenance={"learned": learned, "policy": name})
    policies = out / "policies"
    policies.mkdir(parents=True, exist_ok=True)
    write_bundle(bundle, policies)
    return bundle.version
