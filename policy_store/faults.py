"""Why a policy bundle or a store was refused.

The rule of this module: the list of faults is closed, since it is a metric's label; the words are one line, for people.
"""

from enum import StrEnum


class BundleFault(StrEnum):
    """What is wrong with a bundle, or with the pointer to it."""

    POINTER = "pointer"
    """The store, or its pointer to the active bundle, cannot be read."""
    UNREADABLE = "unreadable"
    """The bundle or a file of it cannot be read."""
    FORMAT = "format"
    """Not a bundle, or one of a format, kind or part that is not known here."""
    FILES = "files"
    """A file is missing or is one too many."""
    DIGEST = "digest"
    """A file is truncated or altered, or the bundle lies under another version's name."""
    FEATURES = "features"
    """It was made for other features."""
    NOT_FINITE = "not_finite"
    """A number is NaN or infinite."""
    SHAPE = "shape"
    """Its parts do not agree with each other."""


class BundleError(ValueError):
    """A bundle that cannot be used: what is wrong, and where."""

    def __init__(self, fault: BundleFault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


class StoreError(ValueError):
    """A store cannot do what it was asked; nothing has changed."""


class UnknownVersion(StoreError):  # noqa: N818 (it says what is the case)
    """No bundle of that version is in the store."""
