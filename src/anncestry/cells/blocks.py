"""Blocks of the matrix: equal totals of their topologies, comparisons of two arms, and cells that are only listed.

Equal totals: the topologies of a block allow a system the same CPU and memory, all members together.
Arms, before and after a change: a block names its arm; one without an arm is the control, built and measured in each.
Within a round one arm follows the other, and they alternate in the first place (ABBA), so the control shows drift of
the machine.
Listed: cells that can't be measured, as a system lacks a feature, or the platform is too small. Parsing rejects the
first kind; the second gives meaningless numbers (a limit of 32 CPUs on a machine with two). A block with `unsupported:
listed` lists both in its report instead, each with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import TypeVar

from anncestry.cells.spec import Block, Config, Limits, Topology
from anncestry.errors import ConfigError, Unsupported

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


def beyond(topology: Topology, room: Room) -> str:
    """Why a topology can't be measured on a platform, as a sentence: a limit is more than it has. Empty if none is.

    Such a limit limits nothing: what is measured is the platform. Several members may share what one could use.
    """
    limits = {"limits": topology.limits}
    limits |= {f"role_limits.{role}": of for role, of in topology.role_limits.items()}
    limits |= {f"external_limits.{place}": of for place, of in topology.external_limits.items()}
    excesses = []
    for where, of in limits.items():
        cpus, memory_gib = of.cpus or 0, (of.memory_mib or 0) / _MIB_IN_GIB
        if cpus > room.cores:
            excesses.append(f"{where}.cpus: wants {cpus:g} cores, platform {room.platform} has {room.cores:g}")
        if memory_gib > room.memory_gib:
            has = f"platform {room.platform} has {room.memory_gib:g} GiB"
            excesses.append(f"{where}.memory_mib: wants {memory_gib:g} GiB, {has}")
    return "; ".join(excesses)


class Listing:
    """Makes the cells of a matrix, and notes those that can't be in the blocks that ask for it.

    No reason names the folder of the config: what is listed is the same on every machine. `room` is called only where
    a block lists.
    """

    def __init__(self, config: Config, room: Callable[[], Room]) -> None:
        self._config, self._room = config, cache(room)
        self._absent: dict[tuple[str, ...], Absent] = {}

    def make(self, block: Block, names: Sequence[str], arm: str, how: Callable[[], Made]) -> Made | None:
        """What `how` makes of the cell of these names; None if it is listed. Unsupported if the block doesn't list.

        What a system lacks comes before what the platform has no room for.
        """
        if block.unsupported != "listed":
            return how()
        dataset, system, topology, workload = names
        state = NOT_MEASURABLE
        made: Made | None = None
        try:
            made = how()
            reason = beyond(self._config.topologies[topology], self._room())
        except Unsupported as lacking:
            state, reason = UNSUPPORTED, str(lacking).replace(f"{self._config.folder}/", "")
        if not reason:
            return made
        cell = Absent(dataset, system, topology, workload, arm, state, reason)
        self._absent.setdefault(cell.names, cell)
        return None

    def absent(self, measured: set[tuple[str, ...]]) -> list[Absent]:
        """What is listed, sorted, without cells that another block has measured: `measured` are names of cells."""
        return sorted(cell for names, cell in self._absent.items() if names not in measured)


def sentence(cells: Sequence[Absent]) -> str:
    """How many cells are listed, for people; empty if none is."""
    if not cells:
        return ""
    counts = Counter(cell.state for cell in cells)
    said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{len(cells)} {'cell is' if len(cells) == 1 else 'cells are'} listed instead of measured: {said}"


def check_totals(config: Config, limited: Callable[[str, Topology], int], block: Block, where: str) -> None:
    """ConfigError unless a system may use the same CPU and memory in total in each of a block's topologies.

    `limited` finds how many members of a system have a topology's `limits`, each. External components count too: they
    do a part of the work.
    """
    for system in block.systems:
        first: tuple[str, float, int] | None = None
        for name in block.topologies:
            topology = config.topologies[name]
            if topology.role_limits:
                raise ConfigError(f"{where}: equal_totals: {name} has role_limits; give every process the same limits")
            shares: list[tuple[str, Limits | None, int]] = [("", topology.limits, limited(system, topology))]
            shares += [(place, topology.external_limits.get(place), 1) for place in topology.external]
            cpus, memory_mib = 0.0, 0
            for place, limits, members in shares:
                if limits is None or limits.cpus is None or limits.memory_mib is None:
                    of = f"both cpus and memory_mib{' of its ' + place if place else ''}"
                    raise ConfigError(f"{where}: equal_totals: {name} does not limit {of}")
                cpus, memory_mib = cpus + limits.cpus * members, memory_mib + limits.memory_mib * members
            total = (name, round(cpus, 6), memory_mib)
            first = first or total
            if total[1:] != first[1:]:
                said = " and ".join(f"{cpus:g} CPUs, {mib} MiB in {of}" for of, cpus, mib in (first, total))
                raise ConfigError(f"{where}: equal_totals: {system} may use {said}")


def builds(arms: Sequence[str], block: Block) -> list[tuple[int, str]]:
    """(number of the build, arm) of a block: its rebuilds; with arms, one in its own arm, or (the control) in each."""
    if not arms:
        return [(number, "") for number in range(1, block.rebuilds + 1)]
    if block.arm is not None:
        return [(1, block.arm)]
    return [(number, arm) for number, arm in enumerate(arms, start=1)]


def check_arms(arms: Sequence[str], blocks: Sequence[Block], engines: Mapping[str, str]) -> None:
    """ConfigError for arms that can't be compared. Cheap: runs while the workflow is parsed.

    `engines` is the engine of each system: in an arm a dataset has one system and topology of an engine, and the
    other arm has its counterpart.
    """
    control = {place for block in blocks if block.arm is None for place in _places(block)}
    places: dict[str, dict[tuple[str, str], tuple[str, str, str]]] = {arm: {} for arm in arms}
    for number, block in enumerate(blocks):
        if block.arm is not None and block.arm not in arms:
            known = f"there are {', '.join(arms)}" if arms else "none is declared; add arms: [BEFORE, AFTER]"
            raise ConfigError(f"matrix.{number}.arm: unknown arm {block.arm!r}; {known}")
        if arms and "rebuilds" in block.plain:
            raise ConfigError(f"matrix.{number}.rebuilds: unsupported with arms, as each arm has a build of its own")
        for place in _places(block) if block.arm is not None else ():
            said, dataset, system = ", ".join(place), place[0], place[1]
            if place in control:
                raise ConfigError(f"matrix.{number}: {said} is in the control and in arm {block.arm}; keep it in one")
            first = places[str(block.arm)].setdefault((dataset, engines[system]), place)
            if first != place:
                raise ConfigError(
                    f"matrix.{number}: arm {block.arm} holds two systems of one engine: {said} and {', '.join(first)}"
                )
    if arms and not control:
        raise ConfigError("matrix: arms need a control, a block without arm, to tell an effect from drift")
    for arm, other in permutations(arms, 2):
        for pair, place in places[arm].items():
            if pair not in places[other]:
                raise ConfigError(f"arms: {', '.join(place)} of arm {arm} has no counterpart in arm {other}")
        if not places[arm]:
            raise ConfigError(f"arms: no block of the matrix names arm {arm!r}")


def _places(block: Block) -> Iterator[tuple[str, str, str]]:
    """(dataset, system, topology) of a block."""
    return product(block.datasets, block.systems, block.topologies)


def part_of_round(arms: Sequence[str], arm: str, number: int, drawn: float) -> float:
    """Where in a round, from 0 to below 1, a session of an arm lies that was `drawn` (0 to below 1) within its arm.

    The first arm comes first in even rounds, the second in odd ones.
    """
    if arm not in arms:
        return drawn
    place = arms.index(arm)
    return ((place if number % 2 == 0 else len(arms) - 1 - place) + drawn) / len(arms)
