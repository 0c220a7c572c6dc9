"""The matrix: its cells, the specs behind their keys, and where the files of their stages lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from anncestry.cells.blocks import Absent
from anncestry.cells.spec import Config
from anncestry.cells.stage import STAGES, StagePath, key_of
from anncestry.errors import ConfigError


@dataclass(frozen=True)
class Cell:
    """One dataset × system × topology × workload, and the keys of its stages."""

    dataset: str
    system: str
    topology: str
    workload: str
    origin: str
    download: str
    vectors: str
    truth: str
    artifact: str
    load: str
    query: str
    recall: str
    built_as: str
    """The system whose artifact this one runs: its own name, or that of the one that it is `of`."""
    rebuild: int = 1
    """Which of the independent builds of the same load this is, from 1."""
    arm: str = ""
    """Of a comparison of two arms, the one that this cell is measured in."""
    older: Cell | None = None
    """Of an upgrade in place: who loaded the data. Only its stages up to the load count; they have no cell's names."""

    # Records of its stages. Prefixes share a download with the dataset that they are of (`origin`).
    download_path = StagePath("download")
    vectors_path = StagePath("normalize")
    truth_path = StagePath("truth")
    artifact_path = StagePath("artifact")
    index_path = StagePath("load")
    """Beside the loaded data; untracked, so that loading again changes no published time."""
    load_path = StagePath("record")
    query_path = StagePath("query")
    samples_path = StagePath("query", "samples")
    """Raw per-query samples of the measurement."""
    recall_path = StagePath("recall")

    @property
    def loads(self) -> tuple[str, ...]:
        """The keys of the loads that it is measured on."""
        return (self.load,)

    @property
    def chain(self) -> tuple[Cell, ...]:
        """The loads that this one came from by upgrades, the latest first."""
        return () if self.older is None else (self.older, *self.older.chain)

    @property
    def paths(self) -> dict[str, Any]:
        """Names and tracked records of this cell, as the tidy table wants them."""
        names = ("dataset", "system", "topology", "workload", "rebuild", "arm")
        made = ("load_path", *(("query_path", "recall_path") if self.query else ()))
        return {name: getattr(self, name) for name in (*names, *made)}

    @property
    def where(self) -> str:
        """The folder part that all records of this cell share."""
        return f"{self.dataset}/{self.system}/{self.topology}"

    @property
    def measured_path(self) -> str:
        """Folder of the finished runs that are not published yet; untracked."""
        return str(STAGES["run"].folder / self.query)

    @property
    def decided_path(self) -> str:
        """That a cell needs no further rounds, and why; beside its runs, until it is published."""
        return f"{self.measured_path}/rounds.json"

    def run_path(self, run: int) -> str:
        """Record of a finished run that is not published yet."""
        return STAGES["run"].path(self, run=run)


@dataclass(frozen=True)
class Pair:
    """Two loads of one dataset whose servers run at once under one workload, to be compared: side b against side a.

    Where a cell is asked for its names, its load or its runs, a pair answers as well: `system` and `topology` name
    both sides, `load` stands for both loads, and a run is one fresh pair of servers.
    """

    a: Cell
    b: Cell
    """Of a control the same as `a`."""
    workload: str
    pair: str
    """Its key."""
    efforts: tuple[int | None, int | None] = (None, None)
    """Search efforts of a and b, where these are not the workload's."""
    arm: str = ""

    path = StagePath("pair")
    samples_path = StagePath("pair", "samples_a")

    @property
    def sides(self) -> tuple[Cell, Cell]:
        return self.a, self.b

    @property
    def is_control(self) -> bool:
        """Whether both sides are the same: what its ratio shows is no difference of systems."""
        return self.a.load == self.b.load and self.efforts[0] == self.efforts[1]

    @property
    def dataset(self) -> str:
        return self.a.dataset

    @property
    def system(self) -> str:
        builds = (f"~{side.rebuild}" if side.rebuild > 1 else "" for side in self.sides)
        efforts = (f"~effort{effort}" if effort else "" for effort in self.efforts)
        return "..".join(f"{side.system}{b}{e}" for side, b, e in zip(self.sides, builds, efforts, strict=True))

    @property
    def topology(self) -> str:
        return "..".join(dict.fromkeys(side.topology for side in self.sides))

    @property
    def load(self) -> str:
        return f"{self.a.load}..{self.b.load}"

    @property
    def loads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(side.load for side in self.sides))

    @property
    def query(self) -> str:
        """Its key, by the name that the key of a measured cell has."""
        return self.pair

    @property
    def query_path(self) -> str:
        return self.path

    @property
    def paths(self) -> dict[str, Any]:
        """Names and record, as the tidy table wants them."""
        names = {name: getattr(self, name) for name in ("dataset", "system", "topology", "workload")}
        return {**names, "load_path": self.a.load_path, "other_load_path": self.b.load_path, "pair_path": self.path}

    @property
    def where(self) -> str:
        return f"{self.dataset}/{self.system}/{self.topology}"

    @property
    def measured_path(self) -> str:
        """Folder of what was measured on pairs of servers and is not published yet; untracked."""
        return str(STAGES["servers"].folder / self.pair)

    @property
    def decided_path(self) -> str:
        return f"{self.measured_path}/rounds.json"

    def run_path(self, run: int) -> str:
        """Record of what was measured on one pair of servers."""
        return STAGES["servers"].path(self, run=run)


@dataclass
class Matrix:
    """All cells and pairs of one experiment, the spec of every key, and the keys of table and report.

    `absent` are cells that were asked for and are listed instead of measured.
    """

    config: Config
    cells: list[Cell] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    cell_of: dict[str, Cell] = field(default_factory=dict)
    pair_of: dict[str, Pair] = field(default_factory=dict)
    table: str = ""
    report: str = ""

    def spec(self, key: str, stage: str) -> dict[str, Any]:
        """The spec behind a key of this matrix; ConfigError for any other key, never a silent reuse."""
        spec = self.specs.get(key)
        if spec is None or spec["stage"] != stage:
            raise ConfigError(f"{stage} {key} is not in the current matrix (experiment {self.config.experiment})")
        return spec

    def cell(self, key: str) -> Cell:
        """A cell that has this key (for a key that cells share, the first of them)."""
        if key not in self.cell_of:
            raise ConfigError(f"{key} is not in the current matrix (experiment {self.config.experiment})")
        return self.cell_of[key]

    @property
    def measured(self) -> list[Cell | Pair]:
        """All that is measured in rounds."""
        return [*self.cells, *self.pairs]

    @property
    def tabled(self) -> list[Cell | Pair]:
        """All that the table has rows of: cells, pairs, and the loads that only pairs are measured on."""
        known = {cell.load for cell in self.cells}
        sides = {side.load: side for pair in self.pairs for side in pair.sides if side.load not in known}
        return [*self.cells, *sides.values(), *self.pairs]

    @property
    def placed(self) -> list[Cell]:
        """All cells, the sides of pairs, and (before these) the loads that they open by upgrades."""
        each = [*self.cells, *(side for pair in self.pairs for side in pair.sides)]
        return [one for cell in each for one in (*reversed(cell.chain), cell)]

    @property
    def loaded(self) -> list[Cell]:
        """The first of all these of every load."""
        return list({cell.load: cell for cell in reversed(self.placed)}.values())[::-1]

    def pair(self, key: str) -> Pair:
        """The pair of this key."""
        if key not in self.pair_of:
            raise ConfigError(f"pair {key} is not in the current matrix (experiment {self.config.experiment})")
        return self.pair_of[key]

    def runs(self, cell: Cell | Pair) -> int:
        """How many runs of a cell are measured; of one that is measured by need, at first."""
        workload = self.specs[cell.query]["workload"]
        return int(workload["runs"] if "runs" in workload else workload["rounds"]["first"])

    def runs_most(self, cell: Cell | Pair) -> int:
        """How many runs of a cell are measured at most."""
        workload = self.specs[cell.query]["workload"]
        return int(workload["runs"] if "runs" in workload else workload["rounds"]["most"])

    def by_need(self, cell: Cell | Pair) -> bool:
        """Whether a cell is measured in further rounds if its numbers vary."""
        return "rounds" in self.specs[cell.query]["workload"]

    def truth_parts(self, cell: Cell) -> list[str]:
        """The shards of a cell's truth, in order; none where the base is small enough to be searched whole.

        How the base is cut changes nothing of the truth, so that it is in no key, only in these names.
        """
        entry = self.specs[cell.load]["dataset"]
        parts = math.ceil(entry["rows"] * entry["dim"] * 4 / 2**20 / self.config.truth.shard_mib)
        parts = min(parts, entry["rows"])
        numbers = range(1, parts + 1) if parts > 1 else ()
        return [STAGES["truth_part"].path(cell, part=part, parts=parts) for part in numbers]

    def add(self, spec: dict[str, Any]) -> str:
        """Register a spec under its key, and return the key."""
        key = key_of(spec)
        self.specs.setdefault(key, spec)
        return key

    @property
    def table_path(self) -> str:
        """The tidy table, as CSV; JSON and Parquet lie beside it."""
        return STAGES["table"].output.format(experiment=self.config.experiment, key=self.table)

    @property
    def report_path(self) -> str:
        """The page. It is kept with the results that it shows; `reports/EXPERIMENT` is a copy of the current one."""
        return STAGES["report"].output.format(experiment=self.config.experiment, key=self.report)

    @property
    def so_far_path(self) -> str:
        """A page of what is measured so far, in the folder that the whole page's copy replaces."""
        return f"reports/{self.config.experiment}/so-far/index.html"
