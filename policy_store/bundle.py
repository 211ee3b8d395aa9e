"""Policy bundles: a learned policy as a content-addressed directory.

    <version>/manifest.json    format, version, kind, features, provenance, and every other file with size and SHA-256
    <version>/path.json        the path policy's model
    <version>/output_length/   an output-length predictor, where there is one: output_length.json and three .ubj

The rule of this module: a bundle is data, never code, and is checked wholly whenever it is read or made. Whatever does
not check out is refused with one line that says why.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.path.base import PolicyError
from gateway.core.path.rules import AlwaysLocal
from policy_store.faults import BundleError, BundleFault
from policy_store.files import put_directory, remove_directory
from policy_store.finite import non_finite, non_finite_json
from policy_store.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, make_manifest, parse_manifest, render_manifest
from policy_store.output_length_file import FILES as OUTPUT_LENGTH_FILES
from policy_store.output_length_file import OutputLengthFileError, decode_output_length
from policy_store.path_models import FEATURES_OF, PathModel, kind_of, to_policy

PATH_PART: Final = "path.json"
OUTPUT_LENGTH_FOLDER: Final = "output_length/"
OUTPUT_LENGTH_PARTS: Final = tuple(f"{OUTPUT_LENGTH_FOLDER}{name}" for name in OUTPUT_LENGTH_FILES)
"""All of them or none."""
PARTS: Final = frozenset({PATH_PART, *OUTPUT_LENGTH_PARTS})
"""The files that this version understands; a bundle with others was made for a newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that was checked: its files as they are written, and what they say."""

    manifest: Manifest
    contents: Mapping[str, bytes]
    """Every file but the manifest."""
    path: PathModel
    output_length: OutputLengthModel | None = field(default=None, compare=False)
    """None where there is no such part; equal contents hold equal ones."""

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the manifest's content."""
        return self.manifest.version


def new_bundle(
    path: PathModel,
    *,
    output_length: Mapping[str, bytes] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Bundle:
    """A bundle of a model; equal models, predictors and provenance give equal versions.

    Args:
        path: decides where the prefill runs.
        output_length: a predictor's files by name, as `output_length_file` makes them; None for no such part.
        provenance: what it was learned from, for people.

    Raises:
        BundleError: a part holds a number that is not finite, or makes no sense.
    """
    _refuse_non_finite(path, PATH_PART)
    # Decoded once: 1 and 1.0 in a column of floats are then the same content.
    path = decode_path_model(msgspec.json.encode(path))
    contents = {PATH_PART: msgspec.json.format(msgspec.json.encode(path, order="deterministic"), indent=2) + b"\n"}
    contents |= {f"{OUTPUT_LENGTH_FOLDER}{name}": raw for name, raw in (output_length or {}).items()}
    manifest = make_manifest(kind=kind_of(path), features=path.features, contents=contents, provenance=provenance or {})
    return _checked(manifest, contents)


def read_bundle(directory: Path) -> Bundle:
    """Read and check a bundle's directory. Hidden files are no part of it.

    Raises:
        BundleError: it cannot be read, is not a bundle, was altered, or makes no sense; the line names the directory.
    """
    try:
        manifest = _read_manifest(directory)
        _check_names(directory, manifest)
        contents = {name: _read_listed(directory, name, manifest) for name in manifest.files}
        return _checked(manifest, contents)
    except BundleError as error:
        raise BundleError(error.fault, f"policy bundle {directory}: {error}") from error
    except OSError as error:
        words = f"cannot read policy bundle {directory}: {error.strerror}"
        raise BundleError(BundleFault.UNREADABLE, words) from error


def write_bundle(bundle: Bundle, parent: Path) -> Path:
    """Write a bundle to the directory `parent/<version>` and return it; one that is there and checks out is left.

    Raises:
        OSError: it cannot be written.
    """
    directory = parent / bundle.version
    if directory.exists():
        if _is_sound(directory):
            return directory
        remove_directory(directory)
    try:
        put_directory(directory, {MANIFEST: render_manifest(bundle.manifest), **bundle.contents})
    except OSError:
        if not _is_sound(directory):
            raise
        # Somebody else has just written the same bundle.
    return directory


def decode_path_model(raw: bytes) -> PathModel:
    """A model from the text of a `path.json`; its shapes are checked by `new_bundle`.

    Raises:
        BundleError: it is none.
    """
    try:
        return msgspec.json.decode(raw, type=PathModel)
    except (msgspec.DecodeError, RecursionError) as error:
        for where in non_finite_json(raw, PATH_PART):
            raise BundleError(BundleFault.NOT_FINITE, f"{where} is not a finite number") from error
        raise BundleError(BundleFault.FORMAT, f"{PATH_PART} is not a path policy's model: {error}") from error


def _checked(manifest: Manifest, contents: Mapping[str, bytes]) -> Bundle:
    _check_kind(manifest)
    model = decode_path_model(contents[PATH_PART])
    if kind_of(model) != manifest.kind:
        words = f"{MANIFEST} says kind {manifest.kind}, {PATH_PART} says {kind_of(model)}"
        raise BundleError(BundleFault.SHAPE, words)
    _refuse_non_finite(model, PATH_PART)
    try:
        to_policy(model, AlwaysLocal())
    except PolicyError as error:
        raise BundleError(BundleFault.SHAPE, f"{PATH_PART}: {error}") from error
    return Bundle(
        manifest=manifest,
        contents=MappingProxyType(dict(contents)),
        path=model,
        output_length=_decode_output_length(contents),
    )


def _decode_output_length(contents: Mapping[str, bytes]) -> OutputLengthModel | None:
    files = {
        name.removeprefix(OUTPUT_LENGTH_FOLDER): contents[name] for name in OUTPUT_LENGTH_PARTS if name in contents
    }
    if not files:
        return None
    try:
        return decode_output_length(files, where=OUTPUT_LENGTH_FOLDER)
    except OutputLengthFileError as error:
        raise BundleError(error.fault, str(error)) from error


def _check_kind(manifest: Manifest) -> None:
    expected = FEATURES_OF.get(manifest.kind)
    if expected is None:
        words = f"kind {manifest.kind} is not known; this version knows {', '.join(FEATURES_OF)}"
        raise BundleError(BundleFault.FORMAT, words)
    if manifest.features != expected:
        made_for = ", ".join(manifest.features) or "none"
        words = f"its features are {made_for}; a {manifest.kind} needs {', '.join(expected)}"
        raise BundleError(BundleFault.FEATURES, words)
    unknown = sorted(manifest.files.keys() - PARTS)
    if unknown:
        raise BundleError(BundleFault.FORMAT, f"this version knows no part {', '.join(unknown)}")
    if PATH_PART not in manifest.files:
        raise BundleError(BundleFault.FILES, f"{MANIFEST} lists no {PATH_PART}")


def _refuse_non_finite(value: object, name: str) -> None:
    for where in non_finite(value, name):
        raise BundleError(BundleFault.NOT_FINITE, f"{where} is not a finite number")


def _read_manifest(directory: Path) -> Manifest:
    if directory.is_dir() and not (directory / MANIFEST).exists():
        raise BundleError(BundleFault.FILES, f"{MANIFEST} is missing")
    return parse_manifest(_read(directory / MANIFEST, at_most=MAX_MANIFEST_BYTES))


def _check_names(directory: Path, manifest: Manifest) -> None:
    listed, there = {MANIFEST, *manifest.files}, set(_names(directory))
    if MANIFEST in manifest.files:
        raise BundleError(BundleFault.FILES, f"{MANIFEST} lists itself")
    if listed - there:
        raise BundleError(BundleFault.FILES, f"{', '.join(sorted(listed - there))} is missing")
    if there - listed:
        raise BundleError(BundleFault.FILES, f"{', '.join(sorted(there - listed))} is not in {MANIFEST}")


def _names(directory: Path) -> list[str]:
    """Every file below, with slashes. Hidden ones are left out: mounts and file managers put their own there."""
    found = []
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(folder).relative_to(directory)
        found += [(below / name).as_posix() for name in files if not name.startswith(".")]
    return found


def _read_listed(directory: Path, name: str, manifest: Manifest) -> bytes:
    entry = manifest.files[name]
    raw = _read(directory / name, at_most=entry.bytes)
    if len(raw) != entry.bytes:
        raise BundleError(BundleFault.DIGEST, f"{name} was truncated to {len(raw)} of {entry.bytes} bytes")
    if sha256(raw).hexdigest() != entry.sha256:
        raise BundleError(BundleFault.DIGEST, f"{name} was altered: its SHA-256 is not the manifest's")
    return raw


def _read(file: Path, *, at_most: int) -> bytes:
    with file.open("rb") as stream:
        raw = stream.read(at_most + 1)
    if len(raw) > at_most:
        raise BundleError(BundleFault.DIGEST, f"{file.name} has more than {at_most} bytes")
    return raw


def _is_sound(directory: Path) -> bool:
    try:
        return read_bundle(directory).version == directory.name
    except BundleError:
        return False
