"""A store of policy bundles in a directory: what there is, and which one is active.

    <store>/bundles/<version>/        a bundle, never changed
    <store>/channels/stable.json      the pointer: the active version, and those that were active before it

The rule of this module: a bundle is checked wholly before the pointer moves, and every change is one rename, so readers
and other writers see the old state or the new one. Two that move the pointer at once both succeed and the later one
stays; what is active is always a bundle that was checked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from policy_store.bundle import Bundle, read_bundle, write_bundle
from policy_store.faults import BundleError, BundleFault, StoreError, UnknownVersion
from policy_store.files import put_file
from policy_store.manifest import Version

STABLE: Final = "stable"
"""The channel that serves all requests."""
KEPT_EARLIER: Final = 50
"""So many roll-backs in a row are possible."""


class Pointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a channel serves."""

    version: Version | None
    """None is switched off: the built-in rule decides."""
    earlier: tuple[Version, ...] = ()
    """What was active before, newest first; roll-backs go through it."""
    at: str
    """When the pointer was moved, in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One bundle of a store."""

    version: str
    bundle: Bundle | BundleError
    """The bundle, or why it is refused."""


def _now() -> datetime:
    return datetime.now(UTC)


class FileStore:
    """A store below `root`, seen through one channel. `clock` dates the moves of the pointer."""

    def __init__(self, root: Path, *, channel: str = STABLE, clock: Callable[[], datetime] = _now) -> None:
        self.root: Final = root
        self._bundles: Final = root / "bundles"
        self._pointer: Final = root / "channels" / f"{channel}.json"
        self._clock: Final = clock

    def directory(self, version: str) -> Path:
        """Where the bundle of a version lies.

        Raises:
            UnknownVersion: it is not in the store.
        """
        # Only names that are listed: a version from a caller cannot lead out of the store.
        if version not in self.versions():
            raise UnknownVersion(f"policy store {self.root} has no bundle {version}")
        return self._bundles / version

    def versions(self) -> list[str]:
        """The versions of all bundles, sound or not, in order."""
        if not self._bundles.is_dir():
            return []
        return sorted(
            entry.name for entry in self._bundles.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )

    def bundles(self) -> Iterator[Stored]:
        """All bundles, checked, in order of their versions."""
        for version in self.versions():
            try:
                yield Stored(version=version, bundle=self.read(version))
            except BundleError as error:
                yield Stored(version=version, bundle=error)

    def read(self, version: str) -> Bundle:
        """Read and check one bundle.

        Raises:
            UnknownVersion: it is not in the store.
            BundleError: it does not check out, or is another one than its directory says.
        """
        directory = self.directory(version)
        bundle = read_bundle(directory)
        if bundle.version != version:
            words = f"policy bundle {directory}: its content is version {bundle.version}"
            raise BundleError(BundleFault.DIGEST, words)
        return bundle

    def add(self, bundle: Bundle) -> str:
        """Keep a bundle, and return its version; one that is there already and checks out is left as it is.

        Raises:
            OSError: it cannot be written.
        """
        self._bundles.mkdir(parents=True, exist_ok=True)
        return write_bundle(bundle, self._bundles).name

    def pointer(self) -> Pointer | None:
        """Where the channel points; None before the first activation.

        Raises:
            BundleError: the store is not there, or the pointer cannot be read.
        """
        try:
            return msgspec.json.decode(self._pointer.read_bytes(), type=Pointer)
        except FileNotFoundError as error:
            if self.root.is_dir():
                return None
            raise BundleError(BundleFault.POINTER, f"there is no policy store {self.root}") from error
        except OSError as error:
            raise BundleError(BundleFault.POINTER, f"cannot read {self._pointer}: {error.strerror}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise BundleError(BundleFault.POINTER, f"{self._pointer} is not a pointer: {error}") from error

    def active(self) -> str | None:
        """The version that the channel points to; None before the first activation and while switched off.

        Raises:
            BundleError: as `pointer`.
        """
        pointer = self.pointer()
        return None if pointer is None else pointer.version

    def activate(self, version: str) -> Pointer:
        """Point to a bundle, once it has been read and checked.

        Raises:
            UnknownVersion: it is not in the store.
            BundleError: it does not check out; the pointer stays.
            OSError: the pointer cannot be written; it stays.
        """
        self.read(version)
        return self._move(version, _earlier(self._held(), leaving_for=version))

    def rollback(self) -> Pointer:
        """Point to the version before the active one, once it has been read and checked.

        Raises:
            StoreError: there is none.
            UnknownVersion: it is not in the store any more.
            BundleError: it does not check out; the pointer stays.
            OSError: the pointer cannot be written; it stays.
        """
        held = self._held()
        if held is None or not held.earlier:
            raise StoreError(f"policy store {self.root} has no earlier version to roll back to")
        version, *earlier = held.earlier
        self.read(version)
        return self._move(version, tuple(earlier))

    def switch_off(self) -> Pointer:
        """Point to nothing: gateways decide by their built-in rule until the next activation or roll-back.

        Raises:
            StoreError: the store is not there.
            OSError: the pointer cannot be written; it stays.
        """
        if not self.root.is_dir():
            raise StoreError(f"there is no policy store {self.root}")
        return self._move(None, _earlier(self._held(), leaving_for=None))

    def _held(self) -> Pointer | None:
        try:
            return self.pointer()
        except BundleError:
            return None  # a pointer that is no good must not stand in the way of a good one

    def _move(self, version: str | None, earlier: tuple[str, ...]) -> Pointer:
        pointer = Pointer(version=version, earlier=earlier[:KEPT_EARLIER], at=self._clock().isoformat())
        self._pointer.parent.mkdir(parents=True, exist_ok=True)
        put_file(self._pointer, msgspec.json.format(msgspec.json.encode(pointer), indent=2) + b"\n")
        return pointer


def _earlier(held: Pointer | None, *, leaving_for: str | None) -> tuple[str, ...]:
    if held is None:
        return ()
    if held.version is None or held.version == leaving_for:
        return held.earlier
    return (held.version, *held.earlier)
