"""Which of several processes one is, and what it has for itself.

The rule of this module: everything that must not be shared among the processes of one gateway is told apart here.
"""

import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.settings import Settings

INNER: Final = "x-tidegate-inner"
"""The header of calls between the processes themselves; whoever passes a client's call on takes it off."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as its parent tells it on its command line."""

    number: int
    """From 0; a process that takes the place of one that died has the same."""
    of: int
    generation: int
    """How many have had this number before."""
    folder: str
    """Where all sockets are; nobody else can open it."""
    port: int
    """The gateway's, also where the settings let the system choose one."""

    @property
    def instance(self) -> str:
        """What its decisions' ids begin with: unique, as that of any replica, and with its number."""
        return f"{uuid.uuid4().hex[:8]}p{self.number}"

    @property
    def socket(self) -> Path:
        """Where it listens to its parent."""
        return Path(self.folder, f"{self.number}-{self.generation}")

    def own(self, settings: Settings) -> Settings:
        """The settings of this one process: it has files of its own, and counts as a replica."""
        telemetry = settings.telemetry
        journal = None if telemetry.journal is None else self._beside(telemetry.journal)
        if journal is not None and self.generation:
            # A journal is of one router from its start.
            journal = _suffixed(journal, self.generation)
        files = {
            "decision_log": None if telemetry.decision_log is None else self._beside(telemetry.decision_log),
            "journal": journal,
        }
        return settings.model_copy(
            update={
                "server": settings.server.model_copy(update={"port": self.port}),
                "telemetry": telemetry.model_copy(update=files),
                "routing": settings.routing.model_copy(update=replicated(settings.routing.model_dump(), self.of)),
            }
        )

    def _beside(self, path: Path) -> Path:
        return _suffixed(path, self.number)


def replicated(routing: Mapping[str, Any], processes: int) -> dict[str, int]:
    """What a routing section must say of replicas where each is several processes; empty where it says so.

    A turn may come by another process: its history is known by its text. Processes share the part of their replica.
    """
    replicas = routing.get("replicas", 1)
    if routing.get("replica") is not None or not isinstance(replicas, int) or replicas >= processes:
        return {}
    return {"replicas": processes}


def parent_socket(folder: Path) -> Path:
    """Where the parent listens to its processes."""
    return folder / "parent"


def loads_socket(folder: Path) -> Path:
    """Where the parent passes on loads."""
    return folder / "loads"


def settings_copy(folder: Path) -> Path:
    """The settings file as it is in force: one that was changed and not yet reloaded is not read by a new process."""
    return folder / "settings.yaml"


def patience_s(settings: Settings) -> float:
    """After so long a process that shall stop is ended."""
    return settings.server.drain_delay_s + math.ceil(settings.server.drain_s) + 10.0


def _suffixed(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
