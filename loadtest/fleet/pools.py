"""How a fleet is written: `2P2D` is two prefill and two decode workers, `4A` four that do both.

The rule of this module: text to numbers and back, nothing else.
"""

import re
from dataclasses import dataclass

from gateway.core.types import Role

_PAIR = re.compile(r"(\d+)P(\d+)D", re.IGNORECASE)
_AGGREGATED = re.compile(r"(\d+)A", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """How many workers of each role."""

    prefill: int = 0
    decode: int = 0
    both: int = 0

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.both}A" if self.both else f"{self.prefill}P{self.decode}D"

    def roles(self) -> list[tuple[str, Role]]:
        """A name and a role for every worker."""
        counts = ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode), (Role.BOTH, self.both))
        return [
            (f"worker-{index}" if role is Role.BOTH else f"{role.value}-{index}", role)
            for role, count in counts
            for index in range(count)
        ]


def parse_pools(text: str) -> Pools:
    """Read `2P2D` or `4A`.

    Raises:
        ValueError: it is neither, or no worker could decode.
    """
    if pair := _PAIR.fullmatch(text):
        pools = Pools(prefill=int(pair[1]), decode=int(pair[2]))
    elif aggregated := _AGGREGATED.fullmatch(text):
        pools = Pools(both=int(aggregated[1]))
    else:
        raise ValueError(f"pools are written like 2P2D or 4A, not {text!r}")
    if pools.decode + pools.both < 1:
        raise ValueError(f"{text!r} has no worker that could decode")
    return pools
