"""What a check of a published number is, and what checks share.

Raw values are used where they are known, printed ones elsewhere. A check is a function of the facts that returns a
sentence and the figures that went into it; `findings.csv` names it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anncestry.report.audit import Figure, Published


@dataclass(frozen=True)
class Recomputed:
    """What a check found, in words, and the published numbers that it used."""

    text: str
    figures: tuple[Figure, ...]


Check = Callable[[Published], Recomputed]
TABLES = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV")
DEEP = "deep-image-96-angular"
GLOVE = "glove-100-angular"
SIFT = "sift-128-euclidean"
GIST = "gist-960-euclidean"


def into(checks: dict[str, Check]) -> Callable[[Check], Check]:
    """A decorator that lists a function among `checks`, under its name."""

    def listed(function: Check) -> Check:
        checks[function.__name__.removeprefix("_")] = function
        return function

    return listed


def value_of(figure: Figure) -> float:
    """The value behind a figure: as it was measured where that is known, else as it was printed."""
    return figure.number if figure.source is None else figure.source


def keyed(figures: Iterable[Figure], *names: str) -> dict[tuple[str, ...], Figure]:
    """Figures by what they are of."""
    return {tuple(getattr(figure, name) for name in names): figure for figure in figures}


def pairs_of(facts: Published, place: str, **where: str) -> dict[str, tuple[Figure, Figure]]:
    """By dataset: the figure of Milvus and that of Weaviate."""
    found = keyed(facts.all(place, **where), "dataset", "system")
    datasets = dict.fromkeys(dataset for dataset, _ in found)
    return {
        dataset: (found[dataset, "milvus"], found[dataset, "weaviate"])
        for dataset in datasets
        if (dataset, "milvus") in found and (dataset, "weaviate") in found
    }


def ratios_of(pairs: dict[str, tuple[Figure, Figure]]) -> dict[str, float]:
    """By dataset: Weaviate's divided by Milvus'."""
    return {dataset: value_of(weaviate) / value_of(milvus) for dataset, (milvus, weaviate) in pairs.items()}


def both(pairs: dict[str, tuple[Figure, Figure]]) -> tuple[Figure, ...]:
    """All figures of these pairs."""
    return tuple(figure for pair in pairs.values() for figure in pair)


def span(values: Sequence[float] | Iterable[float], form: str = ".2f") -> str:
    """The least and the largest of values, as text."""
    listed = list(values)
    return f"{min(listed):{form}} to {max(listed):{form}}"


def percent(of: float, to: float) -> float:
    """By how many percent `to` is more than `of`."""
    return 100 * (to / of - 1)


def rows_by_dataset(facts: Published) -> dict[str, float]:
    """Rows of each dataset, from Table I."""
    return {figure.dataset: figure.number for figure in facts.all("Table I", metric="rows")}


def dims_by_dataset(facts: Published) -> dict[str, float]:
    """Dimensions of each dataset, from Table I."""
    return {figure.dataset: figure.number for figure in facts.all("Table I", metric="dim")}


def correlation_of(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation coefficient."""
    return statistics.correlation(list(x), list(y))


def ranks_of(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
