"""A comparison of two arms, before and after a change, with a control that is the same in both.

Blocks of the matrix name their arm; one without is the control, built and measured once in each arm. Within a round
one arm follows the other, in turns first (ABBA), so that a machine that gets slower or faster shows in the control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any

from anncestry.errors import ConfigError


def builds(arms: Sequence[str], block: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(number of the build, arm) of a block: one in its own arm; of the control, one in each."""
    if "arm" in block:
        return [(1, block["arm"])]
    return [(number, arm) for number, arm in enumerate(arms, start=1)]


def check(arms: Sequence[str], blocks: Sequence[Mapping[str, Any]], engines: Mapping[str, str]) -> None:
    """ConfigError for arms that can't be compared. Cheap: runs while the workflow is parsed.

    `engines` is the engine of each system: in an arm a dataset has one system and topology of an engine, and the
    other arm has its counterpart.
    """
    control = {place for block in blocks if "arm" not in block for place in _places(block)}
    places: dict[str, dict[tuple[str, str], tuple[str, str, str]]] = {arm: {} for arm in arms}
    for number, block in enumerate(blocks):
        if "arm" in block and block["arm"] not in arms:
            known = f"there are {', '.join(arms)}" if arms else "there are none: say arms: [BEFORE, AFTER]"
            raise ConfigError(f"matrix.{number}.arm: unknown arm {block['arm']!r}; {known}")
        if arms and "rebuilds" in block:
            raise ConfigError(f"matrix.{number}.rebuilds: not with arms: each of them builds for itself")
        for place in _places(block) if "arm" in block else ():
            said = ", ".join(place)
            if place in control:
                raise ConfigError(f"matrix.{number}: {said} is the control, and in arm {block['arm']}, too")
            dataset, system, _ = place
            first = places[block["arm"]].setdefault((dataset, engines[system]), place)
            if first != place:
                raise ConfigError(f"matrix.{number}: {said} and {', '.join(first)} are of one engine in one arm")
    if arms and not control:
        raise ConfigError("matrix: without a control (a block that names no arm) drift would pass for an effect")
    for arm, other in permutations(arms, 2):
        for pair, place in places[arm].items():
            if pair not in places[other]:
                raise ConfigError(f"arms: {', '.join(place)} of arm {arm} has no counterpart in arm {other}")
        if not places[arm]:
            raise ConfigError(f"arms: no block of the matrix is of arm {arm!r}")


def _places(block: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(dataset, system, topology) of a block."""
    return product(block["datasets"], block["systems"], block["topologies"])


def part_of_round(arms: Sequence[str], arm: str, number: int, drawn: float) -> float:
    """Where in a round, from 0 to below 1, a session of an arm lies that was `drawn` (0 to below 1) within its arm.

    The first arm comes first in even rounds, the second in odd ones.
    """
    if arm not in arms:
        return drawn
    place = arms.index(arm)
    return ((place if number % 2 == 0 else len(arms) - 1 - place) + drawn) / len(arms)
