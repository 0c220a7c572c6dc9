"""The records behind the numbers: read and sealed; and their facts as words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from anncestry.cells.spec import NODES_ROLE, node_limits
from anncestry.errors import DataError
from anncestry.provenance.records import all_codes, read_record, sha256_file, write_record

Records = Mapping[str, Mapping[str, Any]]
"""Records by path, each with its `sha256`."""


def read_records(df: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """The records behind the numbers, by path; a changed or missing one is refused."""
    found: dict[str, Mapping[str, Any]] = {}
    for path, digest in sorted(set(zip(df["record"], df["record_sha256"], strict=True))):
        if not digest:
            continue
        record = read_record(Path(path))
        now = sha256_file(Path(path))
        if now != digest:
            raise DataError(f"{path}: sha256 {now[:12]}… is not the {digest[:12]}… of the table: make the table again")
        found[path] = {**record, "sha256": digest}
    return found


def seal_table(folder: Path, key: str, spec: Mapping[str, Any], df: pd.DataFrame) -> dict[str, Any]:
    """Seal the table `df` that was written to `folder`, with the digests of all records that it was gathered from."""
    made_from = dict(sorted(set(zip(df["record"], df["record_sha256"], strict=True))))
    return write_record(
        folder / "record.json",
        stage="table",
        key=key,
        spec=spec,
        outputs={suffix: folder / f"numbers.{suffix}" for suffix in ("csv", "json", "parquet")},
        body={
            "rows": len(df),
            "numbers": int(df["value"].notna().sum()),
            "records": {path: digest for path, digest in made_from.items() if digest},
        },
    )


def seal_report(folder: Path, key: str, spec: Mapping[str, Any], table_dir: Path) -> dict[str, Any]:
    """Seal the page in `folder`, drawn from the table in `table_dir`, with all files beside it and below."""
    record = folder / "record.json"
    return write_record(
        record,
        stage="report",
        key=key,
        spec=spec,
        inputs={"table": table_dir / "numbers.parquet"},
        outputs={
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path != record
        },
        body={"title": spec["title"]},
    )


def codes_of(record: Mapping[str, Any]) -> list[str]:
    """With which versions of this program a record and its rounds were made, in words; each once."""
    return list(dict.fromkeys(map(_code_text, all_codes(record))))


def _code_text(code: Mapping[str, Any]) -> str:
    commit = str(code.get("commit") or "no commit")[:12]
    changed = " with uncommitted changes" if code.get("dirty") else ""
    return f"anncestry {code.get('anncestry', '')} at {commit}{changed}"


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as pairs of dotted name and text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif isinstance(value, list):
        yield name, ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    elif name:
        yield name, "unknown" if value is None else str(value)


MANY = 6
"""More different numbers than these are told by the least and the largest."""


def merged(facts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Facts of several records as one; where they differ, all values, in order of appearance, or their range."""
    found: dict[str, dict[str, None]] = {}
    for one in facts:
        for name, value in one.items():
            found.setdefault(name, {})[value] = None
    return {name: _several(list(values)) for name, values in found.items()}


def _several(values: list[str]) -> str:
    if len(values) > MANY:
        try:
            ordered = sorted(values, key=float)
        except ValueError:
            pass
        else:
            return f"{ordered[0]} to {ordered[-1]}"
    return " / ".join(values)


def of_stage(records: Mapping[str, Mapping[str, Any]], stage: str) -> list[Mapping[str, Any]]:
    return [record for record in records.values() if record["stage"] == stage]


# What a load is of: its system, whatever its name


class Setup(NamedTuple):
    """What the spec of a load says of its system. `how`: its index and how it was loaded, as canonical JSON.

    `protocol`: grpc or rest, of a system that has both; `mapped`: whether it maps files of its storage path into
    memory. The other fields know neither, nor the library that speaks the protocol.
    """

    engine: str
    version: str
    protocol: str | None
    mapped: bool
    settings: Mapping[str, Any]
    how: str


_ON_PATH = "storage"
"""The value of a setting that stands for the folder on the storage path."""


def setup(load: Mapping[str, Any]) -> Setup:
    """What the record of a load says of its system."""
    spec = load["spec"]
    system, how = spec["system"], spec.get("load") or {}
    engine, settings = str(system.get("engine", "")), system.get("settings") or {}
    return Setup(
        engine,
        str(system.get("version", "")),
        protocol(engine, settings),
        _ON_PATH in settings.values(),
        {name: value for name, value in sorted(settings.items()) if name != "protocol" and value != _ON_PATH},
        json.dumps(
            (spec.get("index"), {name: value for name, value in how.items() if name != "client_env"}), sort_keys=True
        ),
    )


def protocol(engine: str, settings: Mapping[str, Any] | None) -> str | None:
    """How a system is spoken to that has two protocols: no setting means the first. None of any other."""
    said = (settings or {}).get("protocol", "grpc" if engine == "weaviate" else None)
    return None if said is None else str(said)


# The topology of a load: how large it is, and what of it stays while that grows


Topology = Mapping[str, Any]


def cores(topology: Topology) -> float | None:
    """The limit of cores of each of its nodes; None where they have none."""
    return node_limits(topology).get("cpus")


def apart_from_cores(topology: Topology) -> Topology:
    """All but its name and that limit."""
    rest = {name: value for name, value in topology.items() if name != "name"}
    roles = topology.get("role_limits") or {}
    if roles.get(NODES_ROLE):
        return {**rest, "role_limits": {**roles, NODES_ROLE: _without_cores(roles[NODES_ROLE])}}
    return {**rest, "limits": _without_cores(topology.get("limits") or {})}


def apart_from_nodes(topology: Topology) -> Topology:
    """All but its name and its numbers of nodes and replicas."""
    return {name: value for name, value in topology.items() if name not in ("name", "nodes", "replicas")}


def declared_storage(topology: Topology) -> str:
    """What a topology declares of somebody else's storage, in words that say so; empty if it declares nothing."""
    declared = topology.get("declared_storage")
    if not declared:
        return ""
    paths, nics = declared["paths"], declared["nics"]
    said = f"{paths} path{'' if paths == 1 else 's'}, {nics or 'no'} network card{'' if nics == 1 else 's'}"
    return f"{said} (declared, not read back)"


def apart_from_storage(topology: Topology) -> Topology:
    """All but its name, its storage path, and the endpoints at which somebody else runs it."""
    where = ("name", "storage", "storage_limits", "declared_storage", "endpoints", "credentials")
    return {name: value for name, value in topology.items() if name not in where}


def _without_cores(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in limits.items() if name != "cpus"}
