"""What can be learned about paths.

The rule of this module: names only, so that a command line can offer them without loading what learns.
"""

from enum import StrEnum


class Kind(StrEnum):
    """A learned path policy, by its name in bundles and decision records."""

    TABLE = "table"
    """A path per cluster: the paper's."""
    TABLE_REGIME = "table-regime"
    """A path per cluster and load regime."""
    PRICED = "priced"
    """The cheaper path, for workers that placement chose."""
    JOINT = "joint"
    """The cheapest route: path and workers at once."""
