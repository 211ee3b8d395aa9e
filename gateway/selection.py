"""Which path policy decides, where a policy store is followed.

The rule of this module: what the store says is built wholly before it counts. Where that fails, what was held before
goes on, or the built-in rule where nothing was; the refusal is an answer, never an exception.
"""

from dataclasses import dataclass

from gateway.policies import ChosenPath, baseline_path, choose_path, stored_path
from gateway.settings_routing import RoutingSettings
from policy_store.faults import BundleError, BundleFault
from policy_store.store import FileStore, Pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A path policy, and what it was selected by."""

    chosen: ChosenPath
    seen: Pointer | str | None = None
    """Where the store's pointer stood, or why it could not be read; None where there was none."""
    refusal: BundleError | None = None
    """Why what the store says was not chosen."""


def select(routing: RoutingSettings, held: Selected | None = None) -> Selected:
    """Select by a routing section. `held` is what these same settings gave before.

    Raises:
        SettingsError: the section follows no store, and its own policy cannot be built.
    """
    if routing.store is None or not routing.follows_store:
        return Selected(chosen=choose_path(routing))
    store = FileStore(routing.store)
    seen = _seen(store)
    try:
        return Selected(chosen=stored_path(routing, store, _pointer(store, held)), seen=seen)
    except BundleError as refusal:
        chosen = baseline_path(routing) if held is None else held.chosen
        return Selected(chosen=chosen, seen=seen, refusal=refusal)


def select_anew(routing: RoutingSettings, held: Selected) -> Selected | None:
    """What the store says now; None where no store is followed, or its pointer is where it was."""
    if routing.store is None or not routing.follows_store or _seen(FileStore(routing.store)) == held.seen:
        return None
    return select(routing, held)


def _pointer(store: FileStore, held: Selected | None) -> Pointer | None:
    pointer = store.pointer()
    if pointer is None and held is not None and held.chosen.routing.bundle is not None:
        # An empty mount point looks like this; who wants the built-in rule switches off.
        raise BundleError(BundleFault.POINTER, f"the pointer of policy store {store.root} is gone")
    return pointer


def _seen(store: FileStore) -> Pointer | str | None:
    try:
        return store.pointer()
    except BundleError as error:
        return str(error)
