"""A bundle's manifest: what it is, what it was made for, and every file of it by digest.

The rule of this module: a manifest has one way to be written, so a file that differs from it in any byte is refused.
The version is the hash of all the rest, and the rest holds the hash of every file: equal versions, equal bundles.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from policy_store.faults import BundleError, BundleFault

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 2**20
VERSION_DIGITS: Final = 12

Version = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{VERSION_DIGITS}}}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*\.(json|ubj|npz)\Z")]
"""Below the bundle's directory, with slashes; it cannot lead out of it."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Digest


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies in a bundle's directory; made by `make_manifest` or `parse_manifest` only."""

    format: int
    version: Version
    kind: str
    """The path policy's kind, as its model is tagged."""
    features: tuple[str, ...]
    """The columns that the path policy expects, in order."""
    files: dict[FileName, FileEntry]
    provenance: dict[str, str]
    """What it was learned from, for people."""


class _Header(msgspec.Struct):
    format: int


def make_manifest(
    *, kind: str, features: tuple[str, ...], contents: Mapping[str, bytes], provenance: Mapping[str, str]
) -> Manifest:
    """The manifest of a bundle with these files."""
    files = {name: FileEntry(bytes=len(raw), sha256=sha256(raw).hexdigest()) for name, raw in contents.items()}
    manifest = Manifest(
        format=FORMAT, version="", kind=kind, features=features, files=files, provenance=dict(provenance)
    )
    return msgspec.structs.replace(manifest, version=_version(manifest))


def render_manifest(manifest: Manifest) -> bytes:
    """The one way to write it: sorted keys, two blanks of indentation."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2) + b"\n"


def parse_manifest(raw: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        BundleError: it is none, of another format, or altered.
    """
    try:
        header = msgspec.json.decode(raw, type=_Header)
        if header.format != FORMAT:
            words = f"{MANIFEST}: format {header.format} is not known; this version reads format {FORMAT}"
            raise BundleError(BundleFault.FORMAT, words)
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(BundleFault.FORMAT, f"{MANIFEST} is not a bundle's manifest: {error}") from error
    if manifest.version != _version(manifest):
        raise BundleError(BundleFault.DIGEST, f"{MANIFEST} was altered: its content is not version {manifest.version}")
    if raw != render_manifest(manifest):
        raise BundleError(BundleFault.DIGEST, f"{MANIFEST} was altered: it is not laid out as manifests are written")
    return manifest


def _version(manifest: Manifest) -> str:
    content = msgspec.to_builtins(manifest)
    del content["version"]
    return sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:VERSION_DIGITS]
