"""The matrix of a config: its cells, each checked, with the spec and key of each of their stages.

A stage's spec holds everything that could change its output, with the keys of its input stages:
artifact; download → normalize → truth; artifact, normalize → load → query; query, truth → recall; all → table → report.
The inputs of an upgrade in place include the load whose data it opens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, partial
from importlib.metadata import version
from itertools import product
from typing import Any, Protocol

from anncestry.cells import blocks, features, readers
from anncestry.cells.config import look_up
from anncestry.cells.indexes import EFFORTS, BatchRows, asked_effort, check_fits, is_lossy, rows_a_batch
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.spec import BLOCKS_MIN, Block, Config, Dataset, Side, System, Topology
from anncestry.cells.stage import STAGES, code_below, source_digest
from anncestry.errors import ConfigError, Unsupported
from anncestry.home import CASE_STUDIES, PUBLISHED

TUNING_QUERIES = 400
"""Held-out queries that a target recall is tuned on, where the workload does not say."""
SURE_Z = 1.6448536269514722
"""Quantile 0.95 of the standard normal distribution: of what a target recall is surely reached by."""
TRUTH_QUERIES = 1000
"""Truth is of no fewer queries, as far as the dataset has them."""
STORED = ("keyword", "int", "float")
"""Kinds of payload columns that are read from a source so far."""
_NOT_FROM_ELSEWHERE = {
    "client": "other machines run the native driver, not a Python library",
    "stream": "queries and changes need the clock of one machine",
}
"""Keys of a workload that `driver_hosts` can't go with, but for "bytes"."""
_NOT_PAIRED = {
    "client": "both sides are asked by bytes",
    "driver_hosts": "the clock that cuts the slices is this machine's",
}
"""Keys of a workload that pairs can't go with, but for "bytes"."""
DRAWN_WITH = ("altair", "vl-convert-python")
"""Packages whose code ends up in the page."""

Spec = Mapping[str, Any]
_UPGRADE_EPOCH = 2
"""Since 2 an upgrade is charged for the start of its server."""
_AXES = {"datasets": "dataset", "systems": "system", "topologies": "topology", "workloads": "workload"}


def shown_at_least(queries: int) -> float:
    """The recall that so many queries show which all find everything: the lower end of Wilson's one-sided 95 % interval
    (1927). Their spread, which is none, would show a recall of 1."""
    return queries / (queries + SURE_Z**2)


def tuning_least(target: float) -> float:
    """How many held-out queries can show a recall at all; infinity for a recall of 1."""
    return math.inf if target >= 1 else math.ceil(SURE_Z**2 * target / (1 - target))


class Checker(Protocol):
    """What an engine offers (engines/offers.py), as far as the matrix needs it."""

    @property
    def conditions(self) -> Sequence[str]: ...
    @property
    def killed_loads(self) -> bool: ...
    def check_load_by_library(self, system: Mapping[str, Any], topology: Mapping[str, Any]) -> None: ...
    def load_env(self, system: Mapping[str, Any]) -> Mapping[str, Any]: ...
    @property
    def beyond_loopback(self) -> bool: ...
    def client_env(self, system: Spec, workload: Spec) -> dict[str, str] | None: ...
    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None: ...
    def limited(self, system: Spec, topology: Spec) -> int: ...
    def check_pair(self, system: Spec, topology: Spec, slice_s: float) -> None: ...
    def check_upgrade(self, system: Spec, older: Spec) -> None: ...
    def check_zero_vectors(self, system: Spec) -> None: ...
    def check_metric(self, metric: str) -> None: ...


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Puts the file and the entry in front of an error."""
    try:
        yield
    except ConfigError as error:
        kind = Unsupported if isinstance(error, Unsupported) else ConfigError
        raise kind(f"{where}: {error}") from None


def truth_depth(k: int, least: int = 100) -> int:
    """How many exact neighbours are kept for workloads of this k: the next of 100, 1000, 10000, …

    Truth of one depth then serves every k below it, and a new k does not change the truth of the others. The same, from
    `least` = 1000 on, for how many queries have neighbours (see `truth.rows_asked`).
    """
    while least < k:
        least *= 10
    return least


def expand(config: Config, engine: Callable[[str], Checker], room: Callable[[], blocks.Room]) -> Matrix:
    """All cells that the config asks for, each once, in the order of the config. `engine` finds an engine by its name.

    Unknown names, combinations that an engine can't do, and workloads that the data can't answer are ConfigErrors:
    found here, before anything runs. Where a block says so, cells that a system lacks or that the platform has no
    `room` for are listed instead (`Matrix.absent`).
    """
    matrix = Matrix(config)
    expander = _Expander(matrix, engine)
    listing = blocks.Listing(config, room)
    seen: set[tuple[Any, ...]] = set()
    for number, block in enumerate(config.matrix):
        where = f"{config.source}: matrix.{number}"
        if bool(block.systems) == bool(block.paired):
            raise ConfigError(f"{where}: needs either systems or paired: the names of systems, or the two of a pair")
        for kind, singular in _AXES.items():
            for name in getattr(block, kind):
                look_up(getattr(config, kind), name, singular, f"{where}.{kind}")
        if block.paired:
            matrix.pairs += expander.pairs(block, where)
            continue
        if config.equal_totals:
            blocks.check_totals(config, expander.limited, block, f"{where}.topologies")
        builds = blocks.builds(config.arms, block)
        for *names, (build, arm) in product(*(getattr(block, kind) for kind in _AXES), builds):
            asked = (*names, build, arm)
            if asked not in seen:
                cell = listing.make(block, names, arm, partial(expander.cell, *asked))
                if cell is not None:
                    seen.add(asked)
                    matrix.cells.append(cell)
    matrix.absent = listing.absent({(*asked[:4], asked[5]) for asked in seen})
    with _named(str(config.source)):
        engines = {name: system.engine for name, system in config.systems.items()}
        blocks.check_arms(config.arms, [block for block in config.matrix if not block.paired], engines)
    matrix.pair_of = {pair.pair: pair for pair in matrix.pairs}
    matrix.pairs = list(matrix.pair_of.values())
    for each in (*matrix.cells, *matrix.placed):
        for stage in STAGES.values():
            if key := getattr(each, stage.key, ""):
                matrix.cell_of.setdefault(key, each)
    matrix.table = matrix.add(
        {
            "stage": "table",
            "experiment": config.experiment,
            "cells": sorted([cell.load, cell.query, cell.recall] for cell in matrix.cells),
            **(
                {"pairs": sorted([pair.a.load, pair.b.load, pair.pair] for pair in matrix.pairs)}
                if matrix.pairs
                else {}
            ),
            **({"arms": list(config.arms)} if config.arms else {}),
            **({"absent": [asdict(cell) for cell in matrix.absent]} if matrix.absent else {}),
            "sources": source_digest(STAGES["table"].source_files()),
        }
    )
    matrix.report = matrix.add(
        {
            "stage": "report",
            "title": config.title,
            "decide": config.decide.rule,
            **({} if config.chart_files else {"chart_files": False}),
            "table": matrix.table,
            "published_as": {name: of.published_as for name, of in config.datasets.items() if of.published_as},
            "sources": source_digest(
                (*STAGES["report"].source_files(), *code_below(CASE_STUDIES), *PUBLISHED.glob("*.csv"))
            ),
            "packages": {name: version(name) for name in DRAWN_WITH},
        }
    )
    return matrix


class _Expander:
    """Makes cells; those of one load share it."""

    def __init__(self, matrix: Matrix, engine: Callable[[str], Checker]) -> None:
        self.matrix, self.config = matrix, matrix.config
        self.engine = cache(engine)
        self._loads: dict[tuple[Any, ...], _Load] = {}
        self._remote: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._controlled: set[tuple[str, str, str]] = set()

    def add(self, stage: str, **spec: Any) -> str:
        """The key of a stage with this spec and the stage's epoch."""
        return self.matrix.add({"stage": stage, "epoch": self.config.epochs[stage], **spec})

    def limited(self, system: str, topology: Topology) -> int:
        """How many members of a system in a topology have its `limits`, each."""
        described = self.config.systems[system]
        return self.engine(described.engine).limited(described.plain, topology.plain)

    def load(self, *names: Any) -> _Load:
        """The load of a dataset into a system in a topology, of a build and an arm."""
        if names not in self._loads:
            self._loads[names] = _Load(self, *names)
        return self._loads[names]

    def data(self, dataset: Dataset) -> tuple[str, str]:
        """The keys of a dataset's download and its vectors."""
        whole = self.config.datasets[dataset.origin].plain
        identity = {key: whole[key] for key in ("rows", "queries", "dim", "content", "conditions") if key in whole}
        if not {"base", "queries", *(["payload"] if "conditions" in whole else [])} <= set(whole["content"]):
            # Without the digests of all its content, what the dataset is depends on where it came from; a copy of
            # its files on this machine is meant to be the same.
            identity["sources"] = [
                {key: value for key, value in source.items() if key != "local_copy"} for source in dataset.sources
            ]
            with _named(f"{self.config.folder / 'datasets.yaml'}: {dataset.origin}.sources"):
                codes = {name: readers.code_of(name) for name in readers.used(dataset.sources)}
            identity |= {"readers": codes} if codes else {}
        download = self.add("download", name=dataset.origin, **identity)
        rule = {} if dataset.zero_vectors == "refuse" else {"zero_vectors": dataset.zero_vectors}
        how = {"metric": dataset.metric, "prefix": dataset.prefix, "seed": self.config.seed, **rule}
        return download, self.add("normalize", download=download, **how)

    def index(self, system: System) -> Spec:
        """What the system builds: its own index, or that of the experiment, with what its own changes of it."""
        own = system.index or {}
        return own if "type" in own else {**self.config.index, **own}

    def parts(self, topology: str) -> dict[str, dict[str, Any]]:
        """The external parts of a topology, with those that they need themselves, by name."""
        folder = self.config.folder
        parts: dict[str, dict[str, Any]] = {}
        external = self.config.topologies[topology].external.values()
        needed = [(f"{folder / 'topologies.yaml'}: {topology}.external", name) for name in external]
        for where, name in needed:
            part = look_up(self.config.parts, name, "part", where)
            parts[name] = {"version": part.version, "artifact": part.artifact}
            needed += [(f"{folder / 'parts.yaml'}: {name}.with", other) for other in part.with_]
        return dict(sorted(parts.items()))

    def refuse_second_at_endpoint(self, names: tuple[Any, ...], engine: str, placed: Topology) -> None:
        """ConfigError if another load of this matrix uses the same remote server."""
        endpoint = (engine, *sorted(placed.endpoints.values()))
        other = self._remote.setdefault(endpoint, names)
        if other != names:
            raise ConfigError(
                f"{', '.join(map(str, names))}: a remote endpoint holds one load at a time, and "
                f"{', '.join(map(str, other))} (dataset, system, topology, build) is "
                f"loaded at the same one ({', '.join(endpoint[1:])}): put them into separate experiments"
            )

    def cell(self, dataset: str, system: str, topology: str, workload: str, rebuild: int, arm: str = "") -> Cell:
        """One cell with the keys of all its stages."""
        load = self.load(dataset, system, topology, rebuild, arm)
        asked, truth = self.asked(load, workload, f"{self.config.folder / 'workloads.yaml'}: {workload}")
        # Of a client with packages of its own, which; the keys of all others name no environment.
        environment = load.engine.client_env(load.described.plain, asked)
        query = self.add(
            "query",
            load=load.key,
            dataset={"name": dataset, "metric": load.entry.metric},
            system={"name": system, "version": load.described.version},
            topology={"name": topology},
            driver=self.config.driver,
            workload={"name": workload, **asked},
            seed=self.config.seed,
            platform=self.config.platform,
            **({} if environment is None else {"client_env": environment}),
        )
        recall = self.add("recall", query=query, truth=truth)
        return load.cell(workload, truth, query, recall)

    def asked(self, load: _Load, workload: str, where: str, effort: int | None = None) -> tuple[dict[str, Any], str]:
        """A workload as a load is asked with it, checked, and the key of the exact neighbours that it needs.

        An `effort` takes the place of the workload's.
        """
        asked = load.complete(self.config.workloads[workload], where)
        if effort is not None:
            named = [name for name in EFFORTS if name in asked]
            if not named:
                raise ConfigError(f"{where}: asks for no search effort that the effort of a side could replace")
            asked[named[0]] = effort
        deepest = 1
        for feature in features.of(asked):
            feature.check(asked, load.dataset, load.entry, where)
            deepest = max(deepest, feature.depth(asked))
        load.check_workload(asked, where)
        depth = min(truth_depth(asked["k"] * deepest), load.entry.rows)
        queries = truth_depth(asked["queries"], TRUTH_QUERIES)
        truth = self.add(
            "truth",
            vectors=load.vectors,
            metric=load.entry.metric,
            filter=asked.get("filter"),
            depth=depth,
            **({"queries": queries, "seed": self.config.seed} if queries < load.entry.queries else {}),
        )
        return asked, truth

    def pairs(self, block: Block, where: str) -> Iterator[Pair]:
        """The pairs of a block, and before them their control: the first side paired with itself.

        One control for each engine, topology and workload, on the first dataset: it shows what this machine makes of a
        pair without a difference.
        """
        for key in ("arm", "rebuilds"):
            if key in block.plain:
                raise ConfigError(f"{where}.{key}: unsupported with paired; a side may name a build")
        for side in block.paired:
            look_up(self.config.systems, side.system, "system", f"{where}.paired")
            if side.topology is not None:
                look_up(self.config.topologies, side.topology, "topology", f"{where}.paired.topology")
        first, second = block.paired
        for dataset, topology, workload in product(block.datasets, block.topologies, block.workloads):
            place = self.config.systems[first.system].engine, first.topology or topology, workload
            control = [] if place in self._controlled else [(first, first)]
            self._controlled.add(place)
            for sides in (*control, (first, second)):
                yield self.pair(dataset, [(each, each.topology or topology) for each in sides], workload, where)

    def pair(self, dataset: str, sides: Sequence[tuple[Side, str]], workload: str, where: str) -> Pair:
        """One pair, with the keys of the stages of both sides."""
        of_workload = f"{self.config.folder / 'workloads.yaml'}: {workload}"
        duet = self.config.duet
        cells, specs, workloads = [], [], []
        for side, topology in sides:
            load = self.load(dataset, side.system, topology, side.build, "")
            with _named(f"{where}.paired: {side.system}, {topology}"):
                load.check_pair(duet.slice_s)
            asked, truth = self.asked(load, workload, of_workload, side.effort)
            for feature in features.of(asked):
                raise Unsupported(f"{of_workload}: {feature.name} is unsupported in pairs: they are closed loops alone")
            for key in _NOT_PAIRED:
                if asked.get(key, "bytes") != "bytes":
                    raise Unsupported(f"{of_workload}.{key}: unsupported in pairs: {_NOT_PAIRED[key]}")
            asked = {key: value for key, value in asked.items() if key not in ("runs", "duration_s")}
            cells.append(load.cell("", truth, "", ""))
            system = {"name": side.system, "version": load.described.version}
            own = {} if side.effort is None else {"own_effort": side.effort}
            specs.append({"load": load.key, "system": system, "topology": {"name": topology}, **own})
            workloads.append(asked)
        a, b = workloads
        common = {name: value for name, value in a.items() if name in b and b[name] == value}
        for spec, asked in zip(specs, workloads, strict=True):
            spec["effort"] = {name: value for name, value in asked.items() if name not in common}
        if duet.most < duet.first:
            raise ConfigError(f"{self.config.source}: duet.most: is below duet.first")
        if duet.blocks * duet.first < BLOCKS_MIN:
            raise ConfigError(
                f"{self.config.source}: duet: {duet.blocks} blocks on each of {duet.first} pairs of servers are too "
                f"few: a pair needs {BLOCKS_MIN} in all; raise blocks or first"
            )
        key = self.add(
            "pair",
            dataset={"name": dataset, "metric": self.config.datasets[dataset].metric},
            sides={"a": specs[0], "b": specs[1]},
            workload={"name": workload, **common, "rounds": duet.rule},
            truth=truth,
            slices=duet.slices,
            driver=self.config.driver,
            seed=self.config.seed,
            platform=self.config.platform,
        )
        return Pair(cells[0], cells[1], workload, key, (sides[0][0].effort, sides[1][0].effort))


class _Load:
    """A dataset in a system in a topology, checked: their entries in the config, and the keys of its stages."""

    def __init__(self, expander: _Expander, dataset: str, system: str, topology: str, rebuild: int, arm: str) -> None:
        config = self.config = expander.config
        self.dataset, self.system, self.topology = dataset, system, topology
        self.rebuild, self.arm = rebuild, arm
        self.entry, self.placed = config.datasets[dataset], config.topologies[topology]
        described = self.described = config.systems[system]
        self.engine, self.index = expander.engine(described.engine), expander.index(described)
        self.download, self.vectors = expander.data(self.entry)
        self._check()
        parts = expander.parts(topology)
        self._check_runtime(parts)
        if self.placed.runtime == "remote":
            expander.refuse_second_at_endpoint((dataset, system, topology, rebuild, arm), described.engine, self.placed)
        batch_rows = self._batch_rows()
        self._check_kill(rows_a_batch(batch_rows, self.entry.dim))
        self.artifact = expander.add(
            "artifact",
            system=described.built_as,
            version=described.version,
            artifact=described.artifact,
            **({"parts": parts} if parts else {}),
        )
        kill, older = described.load.kill, described.load.upgrade_from
        how: dict[str, Any] = {"batch_rows": batch_rows, **({"kill": kill.plain} if kill else {})}
        how |= self._client()
        self.older: _Load | None = None
        if older is not None:
            self._check_upgrade(older, expander.index(config.systems[older]))
            self.older = expander.load(dataset, older, topology, rebuild, arm)
            how = {"upgrade_from": older}
        epoch = config.engine_epochs.get(described.engine)
        names = ("engine", "version", "settings")
        self.key: str = expander.add(
            "load",
            vectors=self.vectors,
            artifact=self.artifact,
            dataset={"name": dataset, "metric": self.entry.metric, "rows": self.entry.rows, "dim": self.entry.dim},
            system={"name": system, **{name: getattr(described, name) for name in names}},
            topology={"name": topology, **self.placed.plain},
            index=self.index,
            load=how,
            **({"upgrade_of": self.older.key, "upgrade_epoch": _UPGRADE_EPOCH} if self.older else {}),
            platform=config.platform,
            # Of a second build its number; of an arm its name: another arm's load, made at another time, is no other
            # half of this comparison.
            **({"rebuild": rebuild} if rebuild > 1 else {}),
            **({"arm": arm} if arm else {}),
            **({"engine_epoch": epoch} if epoch else {}),
        )

    def cell(self, workload: str, truth: str, query: str, recall: str) -> Cell:
        """A cell on this load."""
        names = (self.dataset, self.system, self.topology, workload, self.entry.origin)
        keys = (self.download, self.vectors, truth, self.artifact, self.key, query, recall)
        cell = Cell(*names, *keys, self.described.built_as, self.rebuild, self.arm)
        return replace(cell, older=self.opened(cell))

    def check_pair(self, slice_s: float) -> None:
        """Unsupported if servers of this load can't be frozen for a slice."""
        self.engine.check_pair(self.described.plain, self.placed.plain, slice_s)

    def opened(self, cell: Cell) -> Cell | None:
        """Who loaded the data that this upgrade in place opens, named like `cell`; None of a load."""
        older = self.older
        if older is None:
            return None
        bare = replace(cell, system=older.system, built_as=older.described.built_as, workload="", query="", recall="")
        return replace(bare, artifact=older.artifact, load=older.key, older=older.opened(cell))

    def _check(self) -> None:
        """ConfigError for a system that can't hold the dataset in the topology, or an undeclared storage path."""
        with _named(f"system {self.system}"):
            self.engine.check(self.described.plain, self.placed.plain, self.index, None)
            check_fits(self.index, self.entry.dim, f"dataset {self.dataset}")
            with _named(f"dataset {self.dataset}"):
                self.engine.check_metric(self.entry.metric)
                if self.entry.zero_vectors == "keep":
                    self.engine.check_zero_vectors(self.described.plain)
        if self.placed.storage is not None:
            where = f"{self.config.folder / 'topologies.yaml'}: {self.topology}.storage"
            look_up(self.config.storage, self.placed.storage, "storage path", where)
            if self.described.load.upgrade_from is not None:
                raise ConfigError(f"{where}: unsupported for {self.system}, which is an upgrade in place")

    def _check_runtime(self, parts: Mapping[str, Spec]) -> None:
        """ConfigError if an image of a registry were to be run as a process."""
        artifacts = {self.system: self.described.artifact, **{name: part["artifact"] for name, part in parts.items()}}
        images = [name for name, artifact in artifacts.items() if artifact["kind"] == "image"]
        if images and self.placed.runtime == "native":
            raise ConfigError(f"{images[0]}: a container image needs a topology with runtime: docker")

    def _batch_rows(self) -> BatchRows:
        """The rows of an insert request, as the load's spec says them; ConfigError where they are none."""
        own, where = self.described.load.batch_rows, f"{self.config.source}: load.batch_rows"
        if own is not None:
            where = f"{self.config.folder / 'systems.yaml'}: {self.system}.load.batch_rows"
            if self.described.load.upgrade_from is not None:
                raise ConfigError(f"{where}: unsupported with an upgrade in place, which inserts no rows")
        found = self.config.load.batch_rows if own is None else own
        if not isinstance(found, int) and found["least"] > found["most"]:
            raise ConfigError(f"{where}: least {found['least']} is more than most {found['most']}")
        return found

    def _check_kill(self, batch_rows: int) -> None:
        """ConfigError for a load that can't be interrupted as its system says, or is no load."""
        config, how = self.config, self.described.load
        where = f"{config.folder / 'systems.yaml'}: {self.system}.load.kill"
        if how.upgrade_from is not None and (how.kill or config.systems[how.upgrade_from].load.kill):
            raise ConfigError(f"{where}: unsupported with an upgrade in place, which inserts no rows")
        if how.kill is None:
            return
        if self.placed.runtime == "remote":
            raise ConfigError(f"{where}: unsupported on a remote server (runtime remote)")
        if not self.engine.killed_loads:
            engine = self.described.engine
            raise Unsupported(f"{where}: unsupported by engine {engine}: its load does not go on after a kill")
        beside = [key for key in ("external", "roles", "storage") if key in self.placed.plain]
        if self.placed.runtime != "native" or self.placed.nodes != 1 or beside:
            has = ", ".join([f"{self.placed.nodes} nodes", f"runtime {self.placed.runtime}", *beside[:1]])
            raise ConfigError(f"{where}: needs one local server process (runtime native, one node), not {has}")
        if is_lossy(self.index):
            why = "unsupported with a quantized index, which may miss rows that are stored; choose another index"
            raise ConfigError(f"{where}: {why}")
        rows, share = self.entry.rows, how.kill.after_share
        if share * rows > (math.ceil(rows / batch_rows) - 1) * batch_rows:
            raise ConfigError(
                f"{where}.after_share: after {share:g} of {rows} rows in batches of {batch_rows} "
                "no batch follows the kill; choose a smaller share"
            )

    def _client(self) -> dict[str, Any]:
        """What the load's spec says of a client library; ConfigError or Unsupported for one that can't insert."""
        load = self.described.load
        if load.client is None:
            return {}
        where = f"{self.config.folder / 'systems.yaml'}: {self.system}.load.client: {load.client}"
        if load.upgrade_from is not None or load.kill is not None:
            raise ConfigError(f"{where}: unsupported with an upgrade or a kill; these are loads of their own")
        self.engine.check_load_by_library(self.described.plain, self.placed.plain)
        return {"client": load.client, **self.engine.load_env(self.described.plain)}

    def _check_upgrade(self, older: str, index: Spec) -> None:
        """ConfigError if the system can't open the data of the `older` one, which has this `index`."""
        where = f"{self.config.folder / 'systems.yaml'}: {self.system}"
        if self.index != index:
            raise ConfigError(f"{where}.index: differs from the index of {older}, whose data the upgrade opens")
        with _named(where):
            self.engine.check_upgrade(self.described.plain, self.config.systems[older].plain)

    def complete(self, declared: Spec, where: str) -> dict[str, Any]:
        """A workload with its defaults and its effort for this index; ConfigError if the dataset is too small."""
        effort = asked_effort(self.index, declared, self.config.efforts, where)
        given = {key: value for key, value in declared.items() if key not in EFFORTS}
        asked = {**effort, "timeout_s": 30.0, **features.complete(given, where)}
        epochs = self.config.feature_epochs
        if bumped := {each.name: epochs[each.name] for each in features.of(asked) if each.name in epochs}:
            asked["feature_epochs"] = bumped
        if "runs" not in asked:
            for feature in features.of(asked):
                raise ConfigError(f"{where}: {feature.name} needs a number of runs; add the key runs")
            if self.config.rounds.most < self.config.rounds.first:
                raise ConfigError(f"{self.config.source}: rounds.most: is below rounds.first")
            asked["rounds"] = self.config.rounds.rule
        held_out = 0
        if "target_recall" in asked:
            for name in EFFORTS:
                if name in declared:
                    raise ConfigError(f"{where}: has both target_recall and {name}; remove one")
                asked.pop(name, None)
            held_out = asked.setdefault("tuning_queries", TUNING_QUERIES)
            if held_out < (needed := tuning_least(asked["target_recall"])):
                raise ConfigError(
                    f"{where}.tuning_queries: even if all {held_out} find everything, they don't show a recall of "
                    f"{asked['target_recall']:g}; take at least {needed:g}"
                )
        elif "tuning_queries" in asked:
            raise ConfigError(f"{where}.tuning_queries: needs target_recall")
        rows, queries = self.entry.rows, self.entry.queries
        for key, most, of in (("k", rows, "rows"), ("queries", queries, "queries"), ("warmup", rows, "rows")):
            if asked[key] > most:
                raise ConfigError(f"{where}.{key}: {asked[key]} exceeds the {most} {of} of dataset {self.dataset}")
        if held_out and asked["queries"] + asked["warmup"] + held_out > queries:
            raise ConfigError(
                f"{where}: {asked['queries']} queries, {asked['warmup']} to warm up and {held_out} to tune on exceed "
                f"the {queries} queries of dataset {self.dataset}; tuning needs queries of its own"
            )
        return asked

    def check_workload(self, asked: Spec, where: str) -> None:
        """ConfigError for a complete workload that this load can't answer; Unsupported for what its engine lacks."""
        self.engine.check(self.described.plain, self.placed.plain, self.index, asked)
        with _named(where):
            self._check_conditions(asked)
        if "driver_hosts" in asked:
            self._check_reached_from_elsewhere(asked, f"{where}.driver_hosts")

    def _check_conditions(self, asked: Spec) -> None:
        """ConfigError for conditions of queries that the dataset has not; Unsupported for what the engine lacks."""
        kinds, dataset, engine = self.entry.conditions, self.dataset, self.described.engine
        for kind in kinds:
            if kind not in STORED:
                raise Unsupported(f"dataset {dataset}: its conditions are on {kind}, which is unsupported so far")
        if kinds and "stream" in asked:
            raise Unsupported(f"stream: rows that are inserted meanwhile lack the payload that dataset {dataset} has")
        if (asked.get("filter") or {}).get("field") != "payload":
            return
        if not kinds:
            raise ConfigError(
                f"filter: dataset {dataset} has no conditions of its queries, which field payload asks for"
            )
        for kind in kinds:
            if kind not in self.engine.conditions:
                raise Unsupported(
                    f"filter: engine {engine} can't be asked with conditions on {kind} (dataset {dataset})"
                )

    def _check_reached_from_elsewhere(self, asked: Spec, where: str) -> None:
        """ConfigError if clients on other machines could not reach the system, or can't run there."""
        for key, why in _NOT_FROM_ELSEWHERE.items():
            if asked.get(key, "bytes") != "bytes":
                raise ConfigError(f"{where}: unsupported with {key}: {why}")
        if self.config.driver != "native":
            raise ConfigError(f"{where}: needs driver: native, not {self.config.driver}")
        if self.placed.runtime == "docker":
            raise ConfigError(f"{where}: {self.topology}: other machines can't reach containers")
        if self.placed.runtime == "native" and not self.engine.beyond_loopback:
            raise ConfigError(
                f"{where}: {self.system}: engine {self.described.engine} listens on loopback only; use a "
                "topology with runtime: remote"
            )
