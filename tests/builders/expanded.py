"""Records with plausible numbers for every cell of an experiment as it is in config: what it asks is real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anncestry import engines
from anncestry.cells import config
from anncestry.cells.blocks import Room
from anncestry.cells.expand import expand
from anncestry.cells.matrix import Cell, Matrix
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import tidy
from anncestry.report.model.records import read_records
from anncestry.report.published import Published
from tests.builders.world import World, over_runs, recorded, rounds, sha256
from tests.toy import ROOT

Rate = Callable[[Cell, dict[str, Any], dict[str, Any]], float]
"""Queries per second of a cell, from the specs of its load and its queries."""


_LATENCIES = {"p50": 0.9, "mean": 1.0, "p95": 1.5, "p99": 2.5}
"""Shares of the time a client has for a query."""
_LIBRARIES = ("diskann", "hnswlib")


def path_of(topology: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of a topology's storage path: over NVMe its number of paths, as its name has it."""
    name, limits = topology["storage"], dict(topology.get("storage_limits") or {})
    pacing = {"pacing": limits.pop("pacing")} if "pacing" in limits else {}
    paths = int(name[len("nvmeof-")]) if name.startswith("nvmeof-") else None
    of_device = {
        "device": None if name == "memory" else "nvme0n1",
        "rotational": None,
        "model": None,
        "transport": None,
    }
    return {
        "name": name,
        "filesystem": "tmpfs" if name == "memory" else "ext4",
        **of_device,
        "paths": paths,
        "same_device_as": [],
        **({"limits": {"asked": limits, **pacing}} if limits else {}),
    }


def matrix_of(experiment: str) -> Matrix:
    """The experiment on a machine that has room for all of it."""
    return expand(config.load(ROOT / "config", experiment), engines.offers_of, lambda: Room("lab", 64, 512))


def material_of(matrix: Matrix, rate: Rate, load_s: Callable[[dict[str, Any]], float] = lambda load: 100.0) -> Material:
    """What a report of it is made from; the records lie below the working directory."""
    for number, cell in enumerate(matrix.cells):
        spread = 0.005 + 0.0001 * number  # of each its own: what all have alike is no noise of their ratios
        load, query = matrix.spec(cell.load, "load"), matrix.spec(cell.query, "query")
        asked, data = query["workload"], load["dataset"]
        runs = asked.get("runs", 3)
        shape = (data["metric"], data["rows"], data["dim"])
        of_load, of_query, of_recall = recorded(shape, cell.load, cell.query_path)
        times = {**of_load["times"], "load_s": load_s(load)}
        role = {"role": "library" if load["system"]["engine"] in _LIBRARIES else "server"}
        server = {**of_load["server"], "members": {"one": role}}
        on_path = {"storage_path": path_of(load["topology"])} if "storage" in load["topology"] else {}
        World.write(cell.load_path, {**of_load, "spec": load, "times": times, "server": server, **on_path})
        qps = rate(cell, load, query)
        ms = 1000 * asked["clients"] / qps
        summary = {
            **of_query["summary"],
            "qps": over_runs(qps, runs, spread),
            **{f"{name}_ms": over_runs(ms * part, runs, spread) for name, part in _LATENCIES.items()},
        }
        effort = asked.get("ef_search", asked.get("search_list", 64))
        asked_in = {"spec": query, "summary": summary, "ef_search": effort, "rounds": rounds(runs, 0), **on_path}
        World.write(cell.query_path, {**of_query, **asked_in})
        of_recall["inputs"]["query"]["sha256"] = sha256(cell.query_path)
        World.write(cell.recall_path, {**of_recall, "query_key": cell.query, "spec": {"query_key": cell.query}})
    df = tidy([cell.paths for cell in matrix.cells])
    return Material(df, read_records(df), Published.beside(matrix.config), pages={}, absent=matrix.absent)
