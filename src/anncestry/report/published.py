"""What others published, number by number, with its trace: the facts of config/published/.

`numbers.csv` holds every figure of five documents with the place and line where it stands and, for the tables of the
paper, the raw file, key and value that it was made from; `runs.csv` the paper's raw runs; `findings.csv` what does not
fit together; `peers.csv` what another tool's own runner counted. `SHA256SUMS` pins them all. The checks of casestudies/
make each finding's figures again from these facts.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anncestry.cells.spec import Config
from anncestry.errors import DataError
from anncestry.home import PUBLISHED

SUMS = "SHA256SUMS"
PEERS = "peers.csv"

REPOSITORY = "minageus/vector-db-benchmark"
COMMIT = "faa003d"
"""The public repository of the paper, and the commit at which its raw files were read."""

DOCUMENTS = {
    "paper": "the paper: Milvus 2.3 and Weaviate 1.27",
    "milvus-2.2": "Milvus 2.2 benchmark report",
    "weaviate-grpc": "Weaviate's article on gRPC",
    "polardb": "PolarDB with VectorDBBench",
    "diskann": "DiskANN over NVMe-oF with Milvus 2.6.9",
}


def digests(folder: Path) -> dict[str, str]:
    """Name → sha256 of the files that SHA256SUMS lists; empty where there is none."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except OSError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}


@dataclass(frozen=True)
class Figure:
    """A published number: where it stands, what it says, and what it was made from (empty where nothing is known)."""

    id: str
    document: str
    place: str
    dataset: str
    system: str
    version: str
    topology: str
    index: str
    metric: str
    k: str
    filtered: str
    clients: str
    value: str
    std: str
    unit: str
    line: str
    detail: str
    source_file: str
    source_key: str
    source_value: str
    source_std: str
    derived: str
    ran_on: str

    @property
    def number(self) -> float:
        return float(self.value)

    @property
    def source(self) -> float | None:
        """The value in the raw file, where it is known."""
        return float(self.source_value) if self.source_value else None

    @property
    def raw(self) -> float:
        """The value behind it: as it was measured where that is known, else as printed."""
        return self.number if self.source is None else self.source

    @property
    def decimals(self) -> int:
        """Digits after the point, as printed."""
        return len(self.value.partition(".")[2])

    @property
    def agrees(self) -> bool | None:
        """Whether the printed value is the raw one, rounded to the printed digits; None where that isn't known."""
        if self.source is None:
            return None
        return abs(self.number - self.source) <= 0.5 * 10.0**-self.decimals * (1 + 1e-9)

    @property
    def what(self) -> str:
        """In words: what was measured of what."""
        asked = [f"k={self.k}" if self.k else "", "filtered" if self.filtered == "1" else ""]
        asked += [f"{self.clients} clients" if self.clients else ""]
        return " ".join(filter(None, (self.system, self.dataset, self.topology, self.metric, *asked)))

    def plain(self) -> dict[str, Any]:
        """As JSON takes it, without what is empty."""
        return {name: value for name, value in vars(self).items() if value}


class Published:
    """The facts of a folder, looked up by where they stand."""

    def __init__(self, folder: Path = PUBLISHED, datasets: Mapping[str, Sequence[str]] | None = None) -> None:
        """`datasets`: ours, each with its names in the documents; None: any, by the same name."""
        self.folder = folder
        self._datasets = datasets

    @classmethod
    def beside(cls, config: Config, folder: Path = PUBLISHED) -> Published:
        """The facts, with the datasets of an experiment's config."""
        return cls(folder, {name: dataset.published_as for name, dataset in config.datasets.items()})

    def ours(self, dataset: str) -> list[str]:
        """Our names of a dataset of the documents; empty if config has none."""
        if self._datasets is None:
            return [dataset]
        return [name for name, others in self._datasets.items() if dataset in others]

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        path = self.folder / name
        try:
            with open(path, newline="", encoding="utf-8") as file:
                yield from csv.DictReader(file)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: not a table of published facts ({error})") from None

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Every published number, in the order of the documents."""
        try:
            return tuple(Figure(**row) for row in self._rows("numbers.csv"))
        except TypeError as error:
            raise DataError(f"{self.folder / 'numbers.csv'}: not a table of published facts ({error})") from None

    @cached_property
    def runs(self) -> dict[str, Mapping[str, str]]:
        """The paper's raw runs, by the time stamp in their names."""
        return {row["run"]: row for row in self._rows("runs.csv")}

    @cached_property
    def findings(self) -> tuple[Mapping[str, str], ...]:
        return tuple(self._rows("findings.csv"))

    @cached_property
    def peers(self) -> tuple[Mapping[str, str], ...]:
        """What another tool counted of a system that we measure, too; by its own sums, without samples."""
        return tuple(self._rows(PEERS))

    def all(self, place: str, document: str = "paper", **where: str) -> list[Figure]:
        """Figures that stand at `place` and have these values in the columns named."""
        found = [
            figure
            for figure in self.figures
            if figure.document == document
            and figure.place == place
            and all(getattr(figure, name) == value for name, value in where.items())
        ]
        if not found:
            raise DataError(f"{self.folder / 'numbers.csv'}: no figure in {document}, {place} with {where}")
        return found

    def one(self, place: str, document: str = "paper", **where: str) -> Figure:
        found = self.all(place, document, **where)
        if len(found) > 1:
            raise DataError(f"{self.folder / 'numbers.csv'}: {len(found)} figures in {document}, {place} with {where}")
        return found[0]


def peer_id(told: Mapping[str, str]) -> str:
    """The id of what another tool counted: of all that its row says."""
    return f"v{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]}"


def find(folder: Path, number: str) -> Figure | None:
    """The published number of this id, or the only one whose id begins so; None for an id of ours."""
    start = number.lstrip("#").lower()
    if not start.startswith("p"):
        return None
    found = [figure for figure in Published(folder).figures if figure.id.startswith(start)]
    if len(found) != 1:
        shown = ", ".join(f"{figure.id} ({figure.what})" for figure in found[:5])
        raise DataError(
            f"{len(found)} published numbers begin with {number!r}: {shown}, …; give more digits"
            if found
            else f"no published number {number!r}: ids are a p and ten hex digits, as on the audit page"
        )
    return found[0]


def lines(figure: Figure) -> list[str]:
    """A published number and its trace, as a tree."""
    spread = f" ± {figure.std}" if figure.std else ""
    said = [
        f"published number {figure.id}",
        f"  printed: {figure.value}{spread} {figure.unit}",
        f"  of: {figure.what}",
        f"└─ {DOCUMENTS[figure.document]}, {figure.place}, line {figure.line} of its text",
    ]
    if not figure.source_file:
        return [*said, "   └─ · not traced further: nothing that it was made from is public"]
    mark = "✓" if figure.agrees else "✗"
    said.append(f"   └─ {mark} {figure.source_file} of {REPOSITORY} at {COMMIT}")
    said.append(f"      {figure.source_key} = {figure.source_value}")
    if not figure.agrees:
        said.append("      the printed value is not this, rounded")
    if figure.ran_on and figure.topology == "standalone" and figure.ran_on != "standalone":
        said.append(f"      printed as {figure.topology}, but run on {figure.ran_on}")
    return said


def printed_text(value: str) -> str:
    """A figure with the digits that were printed, thousands set apart as in our own."""
    whole, point, digits = value.partition(".")
    return f"{int(whole):,}{point}{digits}" if whole.isdigit() else value
