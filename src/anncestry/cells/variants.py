"""Config entries that stand for several: swept workloads.

A list where a workload takes one number makes a workload of each: `k10: {ef_search: [16, 32]}` is `k10-ef16` and
`k10-ef32`, and a matrix that names `k10` names both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from anncestry.errors import ConfigError

_SWEPT = (
    (("nq",), "nq"),
    (("ef_search",), "ef"),
    (("nprobe",), "nprobe"),
    (("search_list",), "list"),
    (("filter", "share"), "share"),
    (("filter", "halvings"), "halvings"),
    (("filter", "from_share"), "from"),
    (("target_recall",), "recall"),
    (("rate_per_s",), "rate"),
    (("stream", "insert_per_s"), "insert"),
)


def sweep(workloads: Mapping[str, Mapping[str, Any]], where: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Workloads with every list expanded, and the names that each name of the file stands for.

    ConfigError where an expanded name is taken. `where` names the file.
    """
    expanded: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for name, entry in workloads.items():
        axes = [
            [(path, label, value) for value in found]
            for path, label in _SWEPT
            if isinstance(found := _at(entry, path), list)
        ]
        names[name] = []
        for values in product(*axes):
            variant: dict[str, Any] = dict(entry)
            for path, _, value in values:
                variant = _with(variant, path, value)
            full = "-".join([name, *(f"{label}{value:g}" for _, label, value in values)])
            if full in expanded or (full != name and full in workloads):
                raise ConfigError(f"{where}: {name}: one of its variants is {full}, which is another workload's name")
            expanded[full] = variant
            names[name].append(full)
    return expanded, names


def name_all(asked: Iterable[str], names: Mapping[str, list[str]]) -> list[str]:
    """The names of a matrix, a swept workload's replaced by those of its variants; unknown ones stay as they are."""
    return [variant for name in asked for variant in names.get(name, [name])]


def _at(entry: Mapping[str, Any], path: Iterable[str]) -> Any:
    value: Any = entry
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _with(entry: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = path
    return {**entry, first: _with(entry[first], tuple(rest), value) if rest else value}
