"""The matrix: which cells there are, the spec and key of each of their stages, and where each stage's files lie.

A stage's spec holds everything that could change what it makes, with the keys of the stages it is made from:
artifact; download → normalize → truth; artifact, normalize → load → query; query, truth → recall; all → table → report.
A load that is an upgrade in place is made from the load whose data it opens, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from anncestry.cells import arms, conditions, killed, totals
from anncestry.cells.absent import Absent, Listing, Room, of_spec
from anncestry.cells.config import Config, look_up
from anncestry.cells.indexes import EFFORTS, asked_effort, check_fits
from anncestry.cells.keys import key_of, python_files, source_digest
from anncestry.cells.load_model import changes_of, complete
from anncestry.errors import ConfigError, Unsupported

PACKAGE = Path(__file__).resolve().parents[1]
TABLE_SOURCES = python_files(
    [*(PACKAGE / "report" / name for name in ("numbers.py", "absence.py", "quantities.py")), PACKAGE / "metrics"]
)
PUBLISHED = PACKAGE.parents[1] / "config" / "published" / "paper.csv"
REPORT_SOURCES = (
    *python_files([PACKAGE / "report", PACKAGE / "provenance" / "gates.py", PACKAGE / "cells" / "absent.py"]),
    *sorted((PACKAGE / "report" / "site").glob("*/*")),
    *sorted(PUBLISHED.parent.glob("*.csv")),
)
"""Also what the pages quote from elsewhere: the gates, and why cells are listed."""
TUNING_QUERIES = 400
"""Held-out queries that a target recall is tuned on, where the workload does not say."""
DRAWN_WITH = ("altair", "vl-convert-python")
"""Packages whose code ends up in the page."""


Spec = Mapping[str, Any]


class Checker(Protocol):
    """What the matrix wants of an engine: to refuse, by ConfigError, what it can't do."""

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        """Cheap: called for every load, and for every cell, while the workflow is parsed."""

    def limited(self, system: Spec, topology: Spec) -> int:
        """How many members of a system in this topology have its `limits`, each."""

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        """Whether `system` can open the data that `older` has loaded."""


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
    older: Cell | None = None
    """Of an upgrade in place: who loaded the data. Only its stages up to the load count; they have no cell's names."""
    rebuild: int = 1
    """Which of the independent builds of the same load this is, from 1."""
    arm: str = ""
    """Of a comparison of two arms, the one that this cell is measured in."""

    @property
    def chain(self) -> tuple[Cell, ...]:
        """The loads that this one came from by upgrades, the latest first."""
        return () if self.older is None else (self.older, *self.older.chain)

    @property
    def paths(self) -> dict[str, Any]:
        """Names and tracked records of this cell, as the tidy table wants them."""
        return {
            "dataset": self.dataset,
            "system": self.system,
            "topology": self.topology,
            "workload": self.workload,
            "rebuild": self.rebuild,
            "arm": self.arm,
            "load_path": self.load_path,
            "query_path": self.query_path,
            "recall_path": self.recall_path,
        }

    @property
    def where(self) -> str:
        """The folder part that all records of this cell share."""
        return f"{self.dataset}/{self.system}/{self.topology}"

    @property
    def download_path(self) -> str:
        """Record of the download, which prefixes share with the dataset that they are of (`origin`)."""
        return f"data/download/{self.origin}@{self.download}/record.json"

    @property
    def vectors_path(self) -> str:
        """Record of the normalized vectors."""
        return f"data/vectors/{self.dataset}@{self.vectors}/record.json"

    @property
    def truth_path(self) -> str:
        """Record of the exact neighbours."""
        return f"data/truth/{self.dataset}@{self.truth}/record.json"

    @property
    def artifact_path(self) -> str:
        """Record of what is run; untracked, made again where it is needed."""
        return f"scratch/artifact/{self.built_as}@{self.artifact}/record.json"

    @property
    def index_path(self) -> str:
        """Record of the load beside the loaded data; untracked, so that loading again changes no published time."""
        return f"scratch/index/{self.load}/record.json"

    @property
    def load_path(self) -> str:
        """The tracked record of the load."""
        return f"results/load/{self.where}@{self.load}.json"

    @property
    def measured_path(self) -> str:
        """Folder of the finished runs that are not published yet; untracked."""
        return f"scratch/measured/{self.query}"

    def run_path(self, run: int) -> str:
        """Record of a finished run that is not published yet."""
        return f"{self.measured_path}/run-{run}/record.json"

    @property
    def query_path(self) -> str:
        """The tracked record of the measurement."""
        return f"results/query/{self.where}/{self.workload}@{self.query}.json"

    @property
    def samples_path(self) -> str:
        """Raw per-query samples of the measurement."""
        return f"results/query/{self.where}/{self.workload}@{self.query}.samples.parquet"

    @property
    def recall_path(self) -> str:
        """The tracked record of the recall."""
        return f"results/recall/{self.where}/{self.workload}@{self.recall}.json"


@dataclass
class Matrix:
    """All cells of one experiment, the spec of every key, and the keys of table and report.

    `absent` are cells that were asked for and are listed instead of measured.
    """

    config: Config
    cells: list[Cell] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    cell_of: dict[str, Cell] = field(default_factory=dict)
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

    def runs(self, cell: Cell) -> int:
        """How many runs of a cell are measured."""
        return int(self.specs[cell.query]["workload"]["runs"])

    def truth_parts(self, cell: Cell) -> list[str]:
        """The shards of a cell's truth, in order; none where the base is small enough to be searched whole.

        How the base is cut changes nothing of the truth, so that it is in no key, only in these names.
        """
        entry = self.specs[cell.load]["dataset"]
        parts = math.ceil(entry["rows"] * entry["dim"] * 4 / 2**20 / self.config.truth_shard_mib)
        parts = min(parts, entry["rows"])
        folder = cell.truth_path.removesuffix("/record.json").replace("data/", "scratch/", 1)
        return [f"{folder}/part-{part}-of-{parts}.npz" for part in range(1, parts + 1)] if parts > 1 else []

    def add(self, spec: dict[str, Any]) -> str:
        """Register a spec under its key, and return the key."""
        key = key_of(spec)
        self.specs.setdefault(key, spec)
        return key

    @property
    def table_path(self) -> str:
        """The tidy table, as CSV; JSON and Parquet lie beside it."""
        return f"results/table/{self.config.experiment}@{self.table}/numbers.csv"

    @property
    def report_path(self) -> str:
        """The page. It is kept with the results that it shows; `reports/EXPERIMENT` is a copy of the current one."""
        return f"results/report/{self.config.experiment}@{self.report}/index.html"


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Puts the file and the entry in front of what an engine says against it."""
    try:
        yield
    except ConfigError as error:
        kind = Unsupported if isinstance(error, Unsupported) else ConfigError
        raise kind(f"{where}: {error}") from None


def truth_depth(k: int) -> int:
    """How many exact neighbours are kept for workloads of this k: the next of 100, 1000, 10000, …

    Truth of one depth then serves every k below it, and a new k does not change the truth of the others.
    """
    depth = 100
    while depth < k:
        depth *= 10
    return depth


def _dataset(config: Config, name: str) -> dict[str, Any]:
    """A dataset's entry, a prefix resolved to its parent's entry with `prefix` and the number of rows it keeps."""
    entry = config.datasets[name]
    if "of" not in entry:
        return {**entry, "name": name, "origin": name, "prefix": None}
    parent = config.datasets[entry["of"]]
    return {**parent, "name": entry["of"], "origin": entry["of"], "prefix": entry["prefix"]}


def expand(config: Config, engine: Callable[[str], Checker], room: Callable[[], Room]) -> Matrix:
    """All cells that the config asks for, each once, in the order of the config. `engine` finds an engine by its name.

    Unknown names, combinations that an engine can't do, and workloads that the data can't answer are ConfigErrors:
    found here, before anything runs. Where a block says so, cells that a system lacks or that the platform has no
    `room` for are listed instead (`Matrix.absent`).
    """
    matrix = Matrix(config)
    expander = _Expander(matrix, engine)
    listing = Listing(str(config.folder), config.topologies, room)
    seen: set[tuple[str, str, str, str, int, str]] = set()
    source = config.folder / "config.yaml"
    if config.experiment != "default":
        source = config.folder / "experiments" / f"{config.experiment}.yaml"
    for number, block in enumerate(config.blocks):
        tables: dict[str, Mapping[str, Any]] = {
            "datasets": config.datasets,
            "systems": config.systems,
            "topologies": config.topologies,
            "workloads": config.workloads,
        }
        for kind, table in tables.items():
            singular = {"topologies": "topology"}.get(kind, kind[:-1])
            for name in block[kind]:
                look_up(table, name, singular, f"{source}: matrix.{number}.{kind}")
        if config.equal_totals:
            totals.check(config, expander.engine, block, f"{source}: matrix.{number}.topologies")
        builds = [(build, "") for build in range(1, block.get("rebuilds", 1) + 1)]
        if config.arms:
            builds = arms.builds(config.arms, block)
        for *names, (build, arm) in product(*(block[kind] for kind in tables), builds):
            asked = (*names, build, arm)
            if asked not in seen:
                cell = listing.make(block, names, arm, partial(expander.cell, *asked))
                if cell is not None:
                    seen.add(asked)
                    matrix.cells.append(cell)
    matrix.absent = listing.absent({(*asked[:4], asked[5]) for asked in seen})
    with _named(str(source)):
        arms.check(config.arms, config.blocks, {name: entry["engine"] for name, entry in config.systems.items()})
    for cell in matrix.cells:
        for key in (cell.download, cell.vectors, cell.truth, cell.artifact, cell.load, cell.query, cell.recall):
            matrix.cell_of.setdefault(key, cell)
    for cell in matrix.cells:
        for older in cell.chain:
            for key in (older.artifact, older.load):
                matrix.cell_of.setdefault(key, older)
    matrix.table = matrix.add(
        {
            "stage": "table",
            "experiment": config.experiment,
            "cells": sorted([cell.load, cell.query, cell.recall] for cell in matrix.cells),
            **({"arms": list(config.arms)} if config.arms else {}),
            **of_spec(matrix.absent),
            "sources": source_digest(TABLE_SOURCES),
        }
    )
    matrix.report = matrix.add(
        {
            "stage": "report",
            "title": config.title,
            "table": matrix.table,
            "sources": source_digest(REPORT_SOURCES),
            "packages": {name: version(name) for name in DRAWN_WITH},
        }
    )
    return matrix


class _Expander:
    """Makes cells, sharing the stages that several cells have in common."""

    def __init__(self, matrix: Matrix, engine: Callable[[str], Checker]) -> None:
        self.matrix = matrix
        self.config = matrix.config
        self._data: dict[str, tuple[dict[str, Any], str, str]] = {}
        self._loads: dict[tuple[str, str, str, int, str], tuple[str, str]] = {}
        self._remote: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._truths: dict[tuple[str, str, int], str] = {}
        self._find = engine
        self._engines: dict[str, Checker] = {}

    def _stage(self, stage: str, **spec: Any) -> str:
        return self.matrix.add({"stage": stage, "epoch": self.config.epochs[stage], **spec})

    def data(self, name: str) -> tuple[dict[str, Any], str, str]:
        """A dataset's entry and the keys of its download and its vectors."""
        if name not in self._data:
            entry = _dataset(self.config, name)
            identity = {key: entry[key] for key in ("rows", "queries", "dim", "content")} | conditions.identity(entry)
            if not conditions.is_known(entry):
                # Without a content digest, what the dataset is depends on where it came from.
                identity["sources"] = entry["sources"]
            download = self._stage("download", name=entry["name"], **identity)
            vectors = self._stage(
                "normalize",
                download=download,
                metric=entry["metric"],
                prefix=entry["prefix"],
                seed=self.config.seed,
            )
            rows = entry["prefix"] or entry["rows"]
            self._data[name] = ({**entry, "name": name, "rows": rows}, download, vectors)
        return self._data[name]

    def loaded(self, dataset: str, system: str, topology: str, rebuild: int, arm: str) -> tuple[str, str]:
        """Keys of the artifact and of the load; of a second build and later ones the spec holds the number.

        Of an arm it holds the name: what was measured at another time, for other ends, is no half of a comparison.
        """
        names = (dataset, system, topology, rebuild, arm)
        if names not in self._loads:
            config = self.config
            entry, _, vectors = self.data(dataset)
            described = config.systems[system]
            settings = dict(described.get("settings", {}))
            placed = config.topologies[topology]
            index = self.index(system)
            with _named(f"system {system}"):
                self.engine(system).check(described, placed, index, None)
                check_fits(index, entry["dim"], f"dataset {dataset}")
            if "storage" in placed:
                self._storage(system, topology, placed)
            parts = self.parts(topology, placed)
            self._containers_for_images(system, placed, parts)
            self._alone_at_its_endpoint(names, described["engine"], placed)
            self._killed(system, topology, entry["rows"])
            artifact = self._stage(
                "artifact",
                system=described["built_as"],
                version=described["version"],
                artifact=described["artifact"],
                **parts,
            )
            load = self._stage(
                "load",
                vectors=vectors,
                artifact=artifact,
                dataset={"name": dataset, **{key: entry[key] for key in ("metric", "rows", "dim")}},
                system={
                    "name": system,
                    "engine": described["engine"],
                    "version": described["version"],
                    "settings": settings,
                },
                topology={"name": topology, **placed},
                index=index,
                **self._how(dataset, system, topology, rebuild, arm),
                platform=config.platform,
                **({"rebuild": rebuild} if rebuild > 1 else {}),
                **({"arm": arm} if arm else {}),
            )
            self._loads[names] = (artifact, load)
        return self._loads[names]

    def index(self, system: str) -> Spec:
        """What the system builds: its own index, or that of the experiment, with what its own changes of it."""
        own: Spec = self.config.systems[system].get("index", {})
        return own if "type" in own else {**self.config.index, **own}

    def parts(self, topology: str, placed: Spec) -> dict[str, Any]:
        """What stands beside the system in a topology, with what that needs itself; nothing where nothing does."""
        folder, table = self.config.folder, self.config.parts
        found: dict[str, Any] = {}
        wanted = [
            (f"{folder / 'topologies.yaml'}: {topology}.external", name)
            for name in (placed.get("external") or {}).values()
        ]
        while wanted:
            where, name = wanted.pop(0)
            part = look_up(table, name, "part", where)
            found[name] = {"version": part["version"], "artifact": part["artifact"]}
            wanted += [(f"{folder / 'parts.yaml'}: {name}.with", other) for other in part.get("with", ())]
        return {"parts": dict(sorted(found.items()))} if found else {}

    def _storage(self, system: str, topology: str, placed: Spec) -> None:
        """ConfigError for a storage path that nobody declares, or of an upgrade in place."""
        where = f"{self.config.folder / 'topologies.yaml'}: {topology}.storage"
        look_up(self.config.storage, placed["storage"], "storage path", where)
        if self.older(system) is not None:
            raise ConfigError(f"{where}: {system} is upgraded in place: that is not done on a storage path")

    def older(self, system: str) -> str | None:
        """The system whose data this one opens in place; None for one that is loaded."""
        name: str | None = self.config.systems[system].get("load", {}).get("upgrade_from")
        return name

    def _how(self, dataset: str, system: str, topology: str, rebuild: int, arm: str) -> dict[str, Any]:
        """The part of a load's spec that says how the data gets there."""
        older, kill = self.older(system), self.config.systems[system].get("load", {}).get("kill")
        if older is None:
            return {"load": {"batch_rows": self.config.load["batch_rows"], **({"kill": kill} if kill else {})}}
        if self.index(system) != self.index(older):
            raise ConfigError(
                f"{self.config.folder / 'systems.yaml'}: {system}.index: is not that of {older}, whose data is opened"
            )
        with _named(f"{self.config.folder / 'systems.yaml'}: {system}"):
            self.engine(system).check_upgrade(self.config.systems[system], self.config.systems[older])
        return {"load": {"upgrade_from": older}, "upgrade_of": self.loaded(dataset, older, topology, rebuild, arm)[1]}

    def _killed(self, system: str, topology: str, rows: int) -> None:
        """ConfigError for a load that can't be interrupted as its system says, or is no load."""
        config = self.config
        how, where = config.systems[system].get("load", {}), f"{config.folder / 'systems.yaml'}: {system}.load.kill"
        older = how.get("upgrade_from")
        if older is not None and ("kill" in how or "kill" in config.systems[older].get("load", {})):
            raise ConfigError(
                f"{where}: does not go with an upgrade in place: that inserts nothing, and asks for all rows"
            )
        if "kill" in how:
            name, batch_rows = config.systems[system]["engine"], config.load["batch_rows"]
            placed, index = config.topologies[topology], self.index(system)
            killed.check(how["kill"], where, self.engine(system), name, placed, index, rows, batch_rows)

    def _older_cell(self, cell: Cell) -> Cell | None:
        older = self.older(cell.system)
        if older is None:
            return None
        artifact, load = self.loaded(cell.dataset, older, cell.topology, cell.rebuild, cell.arm)
        bare = replace(
            cell,
            system=older,
            workload="",
            artifact=artifact,
            load=load,
            query="",
            recall="",
            built_as=self.config.systems[older]["built_as"],
        )
        return replace(bare, older=self._older_cell(bare))

    def _containers_for_images(self, system: str, placed: Spec, parts: Mapping[str, Any]) -> None:
        """ConfigError if an image of a registry were to be run as a process."""
        named = {system: self.config.systems[system], **parts.get("parts", {})}
        images = [name for name, entry in named.items() if entry["artifact"]["kind"] == "image"]
        if images and placed["runtime"] == "native":
            raise ConfigError(f"{images[0]}: its artifact is a container image: it needs a topology of runtime docker")

    def _alone_at_its_endpoint(self, names: tuple[Any, ...], engine: str, placed: Spec) -> None:
        """ConfigError if another load of this matrix goes to the same server of somebody else's."""
        if placed["runtime"] == "remote":
            endpoint = (engine, *sorted(placed["endpoints"].values()))
            other = self._remote.setdefault(endpoint, names)
            if other != names:
                raise ConfigError(
                    f"{', '.join(map(str, names))}: a remote endpoint holds one load at a time, and "
                    f"{', '.join(map(str, other))} (dataset, system, topology, build) is "
                    f"loaded at the same one ({', '.join(endpoint[1:])}): put them into experiments of their own"
                )

    def _reached_from_elsewhere(self, place: str, system: str, topology: str) -> None:
        """ConfigError if clients on other machines could not reach the system, or can't run there."""
        if self.config.driver != "native":
            raise ConfigError(f"{place}.driver_hosts: needs driver: native; {self.config.driver} runs here only")
        runtime, engine = self.config.topologies[topology]["runtime"], self.config.systems[system]["engine"]
        if runtime == "docker":
            raise ConfigError(f"{place}.driver_hosts: {topology}: containers are reached from this machine only")
        if runtime == "native" and not getattr(self.engine(system), "BEYOND_LOOPBACK", False):
            raise ConfigError(
                f"{place}.driver_hosts: {system}: engine {engine} is made to listen on loopback alone: give it a "
                "topology of runtime remote"
            )

    def engine(self, system: str) -> Checker:
        """The engine of a system."""
        name = self.config.systems[system]["engine"]
        if name not in self._engines:
            self._engines[name] = self._find(name)
        return self._engines[name]

    def _client_env(self, system: str, asked: Spec) -> dict[str, Any]:
        """Of a client with packages of its own, which; nothing of any other: its keys know no environment."""
        find = getattr(self.engine(system), "client_env", None)
        found = find(self.config.systems[system], asked) if find is not None else None
        return {} if found is None else {"client_env": found}

    def cell(self, dataset: str, system: str, topology: str, workload: str, rebuild: int, arm: str = "") -> Cell:
        """One cell with the keys of all its stages."""
        config = self.config
        entry, download, vectors = self.data(dataset)
        artifact, load = self.loaded(dataset, system, topology, rebuild, arm)
        place = f"{config.folder / 'workloads.yaml'}: {workload}"
        effort = asked_effort(self.index(system), config.workloads[workload], config.efforts, place)
        given = {key: value for key, value in config.workloads[workload].items() if key not in EFFORTS}
        asked = {**effort, "timeout_s": 30.0, **complete(given, place)}
        held_out = 0
        if "target_recall" in asked:
            for name in EFFORTS:
                if name in config.workloads[workload]:
                    raise ConfigError(f"{place}: has both target_recall and {name}; the target finds it")
                asked.pop(name, None)
            held_out = asked.setdefault("tuning_queries", TUNING_QUERIES)
        elif "tuning_queries" in asked:
            raise ConfigError(f"{place}.tuning_queries: nothing is tuned without target_recall")
        if asked["k"] > entry["rows"]:
            raise ConfigError(
                f"{place}.k: {asked['k']} neighbours of dataset {dataset}, which has {entry['rows']} rows"
            )
        if asked["queries"] > entry["queries"]:
            raise ConfigError(
                f"{place}.queries: {asked['queries']} queries of dataset {dataset}, which has {entry['queries']}"
            )
        if held_out and asked["queries"] + asked["warmup"] + held_out > entry["queries"]:
            raise ConfigError(
                f"{place}: {asked['queries']} queries, {asked['warmup']} to warm up and {held_out} to tune on are more "
                f"than dataset {dataset} has ({entry['queries']}): those reported must not be those tuned on"
            )
        changes = changes_of(asked)
        if changes["insert"] and asked["queries"] + asked["warmup"] + changes["insert"] > entry["queries"]:
            raise ConfigError(
                f"{place}.stream.insert_per_s: {changes['insert']} rows to insert, {asked['queries']} queries and "
                f"{asked['warmup']} to warm up are more than the queries of dataset {dataset} ({entry['queries']}): "
                "what is inserted are queries that are not asked"
            )
        if 2 * changes["delete"] > entry["rows"]:
            raise ConfigError(
                f"{place}.stream.delete_per_s: {changes['delete']} rows to delete are more than half of dataset "
                f"{dataset} ({entry['rows']} rows)"
            )
        if asked["warmup"] > entry["rows"]:
            raise ConfigError(f"{place}.warmup: {asked['warmup']} queries, dataset {dataset} has {entry['rows']} rows")
        self.engine(system).check(config.systems[system], config.topologies[topology], self.index(system), asked)
        with _named(place):
            conditions.check(dataset, entry, self.engine(system), config.systems[system]["engine"], asked)
        if "driver_hosts" in asked:
            self._reached_from_elsewhere(place, system, topology)

        wanted = asked.get("filter")
        # Of near rows that are deleted, the next ones must be known.
        depth = min(truth_depth(asked["k"] * (3 if changes["delete"] else 1)), entry["rows"])
        shared = (dataset, repr(wanted), depth)
        if shared not in self._truths:
            self._truths[shared] = self._stage(
                "truth", vectors=vectors, metric=entry["metric"], filter=wanted, depth=depth
            )
        query = self._stage(
            "query",
            load=load,
            dataset={"name": dataset, "metric": entry["metric"]},
            system={"name": system, "version": config.systems[system]["version"]},
            topology={"name": topology},
            driver=config.driver,
            workload={"name": workload, **asked},
            seed=config.seed,
            platform=config.platform,
            **self._client_env(system, asked),
        )
        recall = self._stage("recall", query=query, truth=self._truths[shared])
        cell = Cell(
            dataset,
            system,
            topology,
            workload,
            entry["origin"],
            download,
            vectors,
            self._truths[shared],
            artifact,
            load,
            query,
            recall,
            config.systems[system]["built_as"],
            rebuild=rebuild,
            arm=arm,
        )
        return replace(cell, older=self._older_cell(cell))


def session_key(load: str, number: int, queries: Iterable[str], attempt: int) -> str:
    """Key of a session: one server on one loaded index, measuring run `number` of these cells."""
    return key_of({"stage": "session", "load": load, "round": number, "queries": sorted(queries), "attempt": attempt})
