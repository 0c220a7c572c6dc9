"""A system's data on the storage path of its topology: put there before its server starts, and held to be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anncestry.engines.base import Component, Engine, Server
from anncestry.metrics.storage import allocated_mib
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate
from anncestry.runtimes import storage
from anncestry.runtimes.storage import FOLDER, Placed

_NO_DEVICE = "none: the file system has no block device of its own that this machine shows"


@dataclass(frozen=True)
class StoragePath:
    """The storage path of a topology on this machine; `facts` are for the record."""

    name: str
    path: Path
    facts: Mapping[str, Any]
    mapped: bool
    """Whether a setting of the system has files on it mapped into memory (its value is "storage")."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> StoragePath | None:
        """That of the load of `spec`, None where its topology names none; UserError if it can't be used."""
        name = spec["topology"].get("storage")
        if name is None:
            return None
        settings = spec["system"].get("settings") or {}
        return cls(name, storage.declared(name, table), storage.facts(name, table), FOLDER in settings.values())

    @property
    def device(self) -> str | None:
        """The block device whose totals the kernel keeps, None where there is none."""
        name = self.facts["device"]
        return name if name is not None and storage.device_totals(name) is not None else None

    def totals(self) -> Callable[[], tuple[int, int, int, int]] | None:
        """What reads that device's totals; None where there is none."""
        name = self.device
        return None if name is None else lambda: storage.device_totals(name) or (0, 0, 0, 0)

    def put(self, data_dir: Path, stored: Path | None = None) -> Placed:
        """Make a place on it for `data_dir`, with what is in `stored`."""
        return Placed.put(self.name, self.path, data_dir, stored)

    def record(self, placed: Placed, server: Server) -> dict[str, Any]:
        """Facts for the record, while the server runs: what it is, what is mapped, and whose IO can be told."""
        return {
            **self.facts,
            "mapped_mib": placed.mapped_mib(server.pids()),
            "io_of_processes": "/proc/PID/io: bytes that reached storage, of all devices; operations are not counted",
            "io_of_device": f"/proc/diskstats: {self.device}, all programs" if self.device else _NO_DEVICE,
        }

    def gate(self, engine: Engine, placed: Placed, mapped_mib: float | None) -> Gate:
        """What the system keeps of vectors, metadata and index lies on the path, and nothing of it elsewhere."""
        return gates.storage_path(
            self.name,
            *_split(engine.data_components(placed.data_dir), placed.folder),
            mapped_mib if self.mapped else None,
            self.mapped,
        )


def _split(components: list[Component], folder: Path) -> tuple[float, float]:
    """MiB of what is net, on the path and elsewhere."""
    net = [path for component in components if component.net for path in component.paths]
    on = [path for path in net if path.resolve().is_relative_to(folder)]
    return allocated_mib(on), allocated_mib(path for path in net if path not in on)
