"""The A/A noise floor: how far apart numbers are that were measured twice on independent builds of the same thing.

An experiment with `rebuilds` loads every spec several times and measures each build as a cell of its own, in rounds
that take all builds in turn. Whatever differs between them (another build of the index, another start of the server,
another minute of the machine) is noise, by construction: no difference of that size between two systems means anything.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pandas as pd

from anncestry.errors import DataError
from anncestry.provenance.records import read_json, write_json
from anncestry.report.compare_noise import Floor, between_pairs

FILE = "noise.json"
_SAME = ["dataset", "system", "topology", "workload", "phase", "metric"]


def floors(df: pd.DataFrame) -> dict[str, Floor]:
    """Floors by metric: the largest relative difference of any two builds of one cell, in a tidy frame."""
    pairs: list[tuple[str, float, float]] = []
    known = df[df["value"].notna()]
    several = known[known.duplicated(_SAME, keep=False)]
    for names, builds in several.groupby(_SAME, sort=True, dropna=False):
        metric = str(names[-1])
        values = builds.sort_values("rebuild")["value"].tolist()
        pairs += [(metric, float(first), float(second)) for first, second in combinations(values, 2)]
    return between_pairs(pairs)


def write(df: pd.DataFrame, out_dir: Path, platform: str) -> None:
    """Leave the floors of a table beside it, if it has cells that were built more than once."""
    found = floors(df)
    if found:
        body = {metric: {"relative": floor.relative, "source": floor.source} for metric, floor in found.items()}
        write_json(out_dir / FILE, {"platform": platform, "floors": body})


def measured(results: Path, platform: str) -> dict[str, Floor]:
    """The floors of a platform that tables below `results` hold; of several of one metric, the highest."""
    found: dict[str, Floor] = {}
    for path in sorted((results / "table").glob(f"*@*/{FILE}")):
        body = read_json(path)
        try:
            if body["platform"] != platform:
                continue
            for metric, entry in body["floors"].items():
                floor = Floor(float(entry["relative"]), f"{entry['source']} on builds of {path.parent.name}")
                if metric not in found or floor.relative > found[metric].relative:
                    found[metric] = floor
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: not the noise of a table") from None
    return found
