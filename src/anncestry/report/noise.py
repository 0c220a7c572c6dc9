"""The A/A noise floor: how far apart numbers are that were measured twice on independent builds of the same thing.

An experiment with `rebuilds` loads every spec several times and measures each build as a cell of its own, in rounds
that take all builds in turn. Whatever differs between them (another build of the index, another start of the server,
another minute of the machine) is noise, by construction: no difference of that size between two systems means anything.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pandas as pd

from anncestry.provenance.records import read_record
from anncestry.report.compare_noise import Floor, between_pairs
from anncestry.report.numbers import read

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


def measured(results: Path, platform: str) -> dict[str, Floor]:
    """The floors that tables below `results` show for a platform; of several of one metric, the highest."""
    found: dict[str, Floor] = {}
    for folder in sorted((results / "table").glob("*@*")):
        if not (folder / "numbers.parquet").exists():
            continue
        df = read(folder)
        if not (df["rebuild"].fillna(1) > 1).any() or _platform(df, results) != platform:
            continue
        for metric, floor in floors(df).items():
            said = Floor(floor.relative, f"{floor.source} on builds of {folder.name}")
            if metric not in found or said.relative > found[metric].relative:
                found[metric] = said
    return found


def _platform(df: pd.DataFrame, results: Path) -> str | None:
    """The platform that a table was measured on, from its first record that is here."""
    for path in dict.fromkeys(df[df["phase"] == "load"]["record"]):
        file = results.parent / path
        if file.exists():
            return str(read_record(file)["spec"]["platform"])
    return None
