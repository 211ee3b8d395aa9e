"""`tidegate policy`: what is in a policy store, and which bundle of it decides.

The rule of this module: it makes bundles from what users have, and prints; the store itself does the rest.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from policy_store.bundle import Bundle, decode_path_model, new_bundle, read_bundle
from policy_store.faults import BundleError, BundleFault
from policy_store.output_length_file import OutputLengthFileError, output_length_files
from policy_store.store import FileStore, Pointer


def bundle_from(source: Path, provenance: Mapping[str, str], output_length: Path | None = None) -> Bundle:
    """The bundle in a directory, or a new one of a model's JSON file; a directory has its own provenance.

    With `output_length`, the folder of a predictor, it is a new bundle of the same path policy with that predictor.

    Raises:
        BundleError: it does not check out.
    """
    bundle = _bundle_of(source, provenance)
    if output_length is None:
        return bundle
    try:
        files = output_length_files(output_length)
    except OutputLengthFileError as error:
        raise BundleError(error.fault, str(error)) from error
    return new_bundle(bundle.path, output_length=files, provenance=bundle.manifest.provenance)


def _bundle_of(source: Path, provenance: Mapping[str, str]) -> Bundle:
    if source.is_dir():
        if provenance:
            words = f"policy bundle {source} has its own provenance; --note is for a model's file"
            raise BundleError(BundleFault.FORMAT, words)
        return read_bundle(source)
    try:
        return new_bundle(decode_path_model(source.read_bytes()), provenance=provenance)
    except OSError as error:
        raise BundleError(BundleFault.UNREADABLE, f"cannot read {source}: {error.strerror}") from error
    except BundleError as error:
        raise BundleError(error.fault, f"{source}: {error}") from error


def show_list(store: FileStore, console: Console) -> None:
    """Print every bundle of a store, and which one is active."""
    pointer = store.pointer()
    table = Table(title=f"Policy store {store.root}", title_justify="left")
    for name in ("version", "state", "kind", "provenance"):
        table.add_column(name)
    for stored in store.bundles():
        state = _state(stored.version, pointer)
        if isinstance(stored.bundle, Bundle):
            provenance = ", ".join(f"{key} {value}" for key, value in stored.bundle.manifest.provenance.items())
            table.add_row(stored.version, state, stored.bundle.manifest.kind, provenance, style=_style(state))
        else:
            table.add_row(stored.version, state, "refused", str(stored.bundle), style="red")
    console.print(table)
    show_pointer(pointer, console)


def show_bundle(bundle: Bundle, console: Console) -> None:
    """Print what a bundle holds."""
    manifest = bundle.manifest
    table = Table(title=f"Policy bundle {bundle.version}", title_justify="left", show_header=False)
    table.add_row("kind", manifest.kind)
    table.add_row("features", ", ".join(manifest.features))
    if bundle.output_length is not None:
        models = ", ".join(bundle.output_length.spec.models) or "no model"
        table.add_row("output length", f"predictor {bundle.output_length.version}, learned from {models}")
    for key, value in manifest.provenance.items():
        table.add_row(key, value)
    for name, entry in manifest.files.items():
        table.add_row(name, f"{entry.bytes} bytes, SHA-256 {entry.sha256}")
    console.print(table)
    console.print_json(msgspec.json.encode(bundle.path).decode())


def show_pointer(pointer: Pointer | None, console: Console) -> None:
    """Print where a store points now."""
    console.print(_standing(pointer), soft_wrap=True, highlight=False)


def _state(version: str, pointer: Pointer | None) -> str:
    if pointer is None:
        return ""
    if version == pointer.version:
        return "active"
    return "earlier" if version in pointer.earlier else ""


def _style(state: str) -> str | None:
    return "bold" if state == "active" else None


def _standing(pointer: Pointer | None) -> str:
    if pointer is None:
        return "nothing was activated yet: gateways decide by their built-in rule"
    if pointer.version is None:
        return f"off since {pointer.at}: gateways decide by their built-in rule"
    back = f"; a roll-back goes to {pointer.earlier[0]}" if pointer.earlier else ""
    return f"active: {pointer.version} since {pointer.at}{back}"
