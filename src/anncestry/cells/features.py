"""The features of workloads: what each declares, and how it is found by its name.

A workload has a feature by having one of its keys. The features of this package are the folders of
`anncestry.features`; a key with a dot is the path of a module from elsewhere (`my_package.pause: 0.2`). Parsing a
workflow imports what a feature declares, `FEATURE`, but not what acts in runs, `MEASURING`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from anncestry.cells.spec import Dataset, Schema
from anncestry.errors import ConfigError

_PACKAGE = "anncestry.features"

Body = Mapping[str, Any]
"""A record, as it was read; empty for a missing record."""


def at(body: Body, steps: Iterable[str]) -> Any:
    """The value in a record under these names, one within the other; None if there is none."""
    value: Any = body
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


@dataclass(frozen=True)
class Metric:
    """A number's name, unit and place in its record; what is `better`: 1 for more of it, -1 for less, 0 for neither."""

    phase: str
    name: str
    unit: str
    at: tuple[str, ...]
    better: int = 0


Place = tuple[Any, ...]
"""The values of a row of the tidy table in the columns that a row of a table goes by."""


@dataclass(frozen=True)
class TableSpec:
    """A table with one row for each place, and one column for each metric; each cell has its 95 % interval.

    `shown`: metric → label and unit of its column. `by`: the columns of the tidy table that rows go by.
    `by_system`: each metric has a column for each system, in place of one. `having`: only places that have this metric.
    `of`: only these rows of the tidy table. `order`: sorts the places; else they are in the order of their values.
    `all_clients`: with requests of several vectors, and those through client libraries.
    """

    number: str
    title: str
    caption: str
    shown: Mapping[str, tuple[str, str]]
    by: tuple[str, ...] = ("dataset", "topology", "workload", "system")
    by_system: bool = False
    having: str = ""
    of: Callable[[Mapping[str, Any]], bool] = lambda row: True
    order: Callable[[Place], Any] | None = None
    all_clients: bool = False


class Feature:
    """A feature that does nothing. A subclass overrides what differs, and `FEATURE` is its object."""

    name = ""
    """Set when it is found: its folder, or the path of its module."""
    keys: tuple[str, ...] = ()
    """Its keys in a workload; those of a feature from elsewhere are its path."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the value of a feature from elsewhere; workloads.schema.yaml has those of this package."""
    metrics: tuple[Metric, ...] = ()
    """Its numbers, of phase "query" or "recall": a record must have those whose parts it has."""
    absent: Mapping[str, str] = MappingProxyType({})
    """Metric → what it means that a record lacks the number."""
    table: TableSpec | None = None
    """Its table."""
    rank = 9
    """The page shows tables of features of a low rank first."""
    apart: tuple[str, ...] = ()
    """Metrics of workloads that tables of ordinary closed loops leave out."""
    spends_server = False
    """Whether a run changes the server's data or members, so that the next run needs another server."""
    own_server = False
    """Whether a run needs a server that has answered nothing before."""

    def is_in(self, workload: Mapping[str, Any]) -> bool:
        """Whether a complete workload has it."""
        return any(workload.get(key) is not None for key in self.keys)

    def complete(self, workload: MutableMapping[str, Any], where: str) -> None:
        """Add defaults to a workload that has one of its keys; ConfigError if they don't fit to the others."""
        if self.schema is not None:
            for error in Schema(self.schema).errors(workload[self.name]):
                raise ConfigError(f"{where}.{self.name}: {error.message}")

    def check(self, workload: Mapping[str, Any], dataset: str, entry: Dataset, where: str) -> None:
        """ConfigError if a dataset (its name, and its entry in the config) is too small for it."""

    def depth(self, workload: Mapping[str, Any]) -> int:
        """How many times k exact neighbours it needs."""
        return 1

    def metrics_of(self, phase: str, body: Body) -> list[Metric]:
        """The numbers that a record of this phase must have."""
        return [
            metric for metric in self.metrics if metric.phase == phase and isinstance(at(body, metric.at[:-1]), Mapping)
        ]

    def note(self, metric: Metric, body: Body) -> str:
        """What a reader must know of a valid number of a record; empty if nothing."""
        return ""

    def figures(self, material: Any) -> list[Any]:
        """Its figures (`report.charts.Figure`) for the `report.model.material.Material` of a page."""
        return []


def plugins(package: str) -> list[str]:
    """Names of the engines or features of this package: the folders in `package`."""
    return sorted(module.name for module in pkgutil.iter_modules(import_module(package).__path__) if module.ispkg)


@cache
def installed(package: str) -> Mapping[str, EntryPoint]:
    """What other installed packages bring (engines, features, readers), by name: entry points of that group."""
    return {entry.name: entry for entry in entry_points(group=package)}


def is_path(name: str) -> bool:
    """Whether a name is the path of a module from elsewhere (`my.engine`)."""
    return "." in name or ":" in name


def plugin(package: str, name: str, part: str, kind: str) -> object:
    """The constant `part` of the `kind` of that name; None if its module has none. ConfigError for an unknown name.

    The constant lies in the module of that name, or, where that is a package, in its module `part` (in small letters):
    so parsing a workflow does not import what runs it.
    """
    if is_path(name):
        path = name.replace(":", ".")
    elif name in plugins(package):
        path = f"{package}.{name}"
    elif name in installed(package):
        path = installed(package)[name].module
    else:
        known = sorted({*plugins(package), *installed(package)})
        raise ConfigError(f"{kind}: unknown {kind} {name!r}; known: {', '.join(known)}")
    try:
        module = import_module(path)
        if not hasattr(module, part) and hasattr(module, "__path__"):
            path = f"{path}.{part.lower()}"
            module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise
        raise ConfigError(f"{kind}: no module {path!r}; known {kind}s: {', '.join(plugins(package))}") from None
    value: object = getattr(module, part, None)
    return value


_FOUND: dict[str, Feature] = {}


@cache
def get(name: str) -> Feature:
    """The feature of that name (see `plugin`): imports nothing that measures."""
    feature = plugin(_PACKAGE, name, "FEATURE", "feature")
    if not isinstance(feature, Feature):
        raise ConfigError(f"workload: {name} has no FEATURE that is a Feature (docs/adding-a-feature.md)")
    feature.name = name
    if is_path(name):
        feature.keys = (name,)
    _FOUND[name] = feature
    return feature


@cache
def known() -> tuple[Feature, ...]:
    """The features of this package."""
    return tuple(get(name) for name in plugins(_PACKAGE))


def declared(metric: str) -> Metric | None:
    """What a feature of this package, or one from elsewhere that was asked for before, declares of a metric."""
    known()  # finds those of this package
    return next((each for feature in _FOUND.values() for each in feature.metrics if each.name == metric), None)


def among(names: Iterable[str]) -> list[Feature]:
    """The features of this package, then those from elsewhere whose key is among these names."""
    return [*known(), *(get(name) for name in sorted(names) if is_path(name))]


def of(workload: Mapping[str, Any]) -> list[Feature]:
    """The features that a workload has."""
    return [feature for feature in among(workload) if feature.is_in(workload)]


def complete(workload: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The workload with the defaults of its features; ConfigError, beginning with `where`, for what does not fit."""
    completed = dict(workload)
    for feature in among(workload):
        if any(key in completed for key in feature.keys):
            feature.complete(completed, where)
    return completed


def measuring(feature: Feature) -> object | None:
    """The class that does a feature's part of runs and records; None if it has none."""
    return plugin(_PACKAGE, feature.name, "MEASURING", "feature")
