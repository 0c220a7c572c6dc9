"""Cells that are asked for and can't be measured: a system lacks what they ask, or the platform is too small for them.

Parsing refuses them (the first kind), or measures what says nothing (a server that may use 32 CPUs, on a machine of
two). A block of the matrix with `unsupported: listed` has them named in its report instead, each with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from anncestry.errors import Unsupported

UNSUPPORTED = "unsupported"
NOT_MEASURABLE = "not measurable here"
STATES = (UNSUPPORTED, NOT_MEASURABLE)

_MIB_IN_GIB = 1024

Made = TypeVar("Made")


@dataclass(frozen=True)
class Room:
    """What a platform has at most: its id, cores, GiB of memory."""

    platform: str
    cores: float
    memory_gib: float


@dataclass(frozen=True, order=True)
class Absent:
    """A cell that is listed instead of measured: its names, one of STATES, and why."""

    dataset: str
    system: str
    topology: str
    workload: str
    arm: str
    state: str
    reason: str

    @property
    def names(self) -> tuple[str, ...]:
        """What tells it from other cells; its builds are one, as none is built."""
        return self.dataset, self.system, self.topology, self.workload, self.arm


def beyond(topology: Mapping[str, Any], room: Room) -> str:
    """Why a topology can't be measured on a platform, as a sentence: a limit is more than it has. Empty if none is.

    Such a limit limits nothing: what is measured is the platform. Several members may share what one could use.
    """
    limits = {"limits": topology.get("limits") or {}}
    limits |= {f"external_limits.{place}": of for place, of in (topology.get("external_limits") or {}).items()}
    said = []
    for where, of in limits.items():
        if of.get("cpus", 0) > room.cores:
            said.append(f"{where}.cpus: wants {of['cpus']:g} cores, platform {room.platform} has {room.cores:g}")
        if of.get("memory_mib", 0) > room.memory_gib * _MIB_IN_GIB:
            wanted = f"{of['memory_mib'] / _MIB_IN_GIB:g} GiB"
            said.append(f"{where}.memory_mib: wants {wanted}, platform {room.platform} has {room.memory_gib:g} GiB")
    return "; ".join(said)


class Listing:
    """Makes the cells of a matrix, and notes those that can't be in the blocks that ask for it.

    `folder` is that of the config, which no reason shall name: what is listed is the same on every machine. `room` is
    asked only where a block lists.
    """

    def __init__(self, folder: str, topologies: Mapping[str, Mapping[str, Any]], room: Callable[[], Room]) -> None:
        self._folder, self._topologies, self._ask = folder, topologies, room
        self._room: Room | None = None
        self._found: dict[tuple[str, ...], Absent] = {}

    def make(self, block: Mapping[str, Any], names: Sequence[str], arm: str, how: Callable[[], Made]) -> Made | None:
        """What `how` makes of the cell of these names; None if it is listed. Unsupported where that is not asked for.

        What a system lacks is its own and comes first; how much room there is, is the platform's.
        """
        if block.get("unsupported") != "listed":
            return how()
        try:
            made = how()
        except Unsupported as lacking:
            self._note(names, arm, UNSUPPORTED, str(lacking).replace(f"{self._folder}/", ""))
            return None
        if self._room is None:
            self._room = self._ask()
        if why := beyond(self._topologies[names[2]], self._room):
            self._note(names, arm, NOT_MEASURABLE, why)
            return None
        return made

    def _note(self, names: Sequence[str], arm: str, state: str, reason: str) -> None:
        dataset, system, topology, workload = names
        cell = Absent(dataset, system, topology, workload, arm, state, reason)
        self._found.setdefault(cell.names, cell)

    def absent(self, measured: set[tuple[str, ...]]) -> list[Absent]:
        """What is listed, sorted, without cells that another block has measured: `measured` are names of cells."""
        return sorted(cell for names, cell in self._found.items() if names not in measured)


def of_spec(cells: Sequence[Absent]) -> dict[str, Any]:
    """Their part of the table's spec; nothing where none is listed, so that the keys of other tables stay."""
    return {"absent": [asdict(cell) for cell in cells]} if cells else {}


def sentence(cells: Sequence[Absent]) -> str:
    """How many cells are listed, for people; empty if none is."""
    if not cells:
        return ""
    counts = Counter(cell.state for cell in cells)
    said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{len(cells)} {'cell is' if len(cells) == 1 else 'cells are'} listed instead of measured: {said}"
