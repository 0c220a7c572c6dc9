"""The chain behind a number: its row, its records, and every file that they name, each held against its digest now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.cells.matrix import Matrix
from anncestry.errors import ConfigError, DataError
from anncestry.provenance import links, records
from anncestry.provenance.links import State

STAGE_OF_FOLDER = {
    "data/download": "download",
    "data/vectors": "normalize",
    "data/truth": "truth",
    "scratch/artifact": "artifact",
    "scratch/index": "load",
    "results/load": "load",
    "results/query": "query",
    "results/recall": "recall",
}
"""Which stage's records lie below a folder; the key stands in their paths."""


@dataclass
class Node:
    """One thing in the chain: what it is, whether it is what it was, its facts, and what it was made from.

    `path` is relative to the working directory (empty for what is no file), `sha256` as the record that names it says.
    """

    what: str
    path: str = ""
    sha256: str = ""
    state: State = State.SAME
    detail: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    parts: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def plain(self) -> dict[str, Any]:
        """As JSON takes it; what is empty is left out."""
        body = {
            "what": self.what,
            "path": self.path,
            "sha256": self.sha256,
            "state": str(self.state),
            "detail": self.detail,
            "facts": self.facts,
            "parts": [part.plain() for part in self.parts],
        }
        return {name: value for name, value in body.items() if value}


def of_row(row: Mapping[str, Any], table: Path, matrix: Matrix) -> Node:
    """The chain of one row of the tidy table that lies in the folder `table`."""
    where = " · ".join(str(row[name]) for name in ("dataset", "system", "topology", "workload") if row[name])
    facts = {
        "where": where,
        "metric": f"{row['metric']} ({row['phase']})",
        "value": "none" if row["value"] is None else f"{row['value']!r} {row['unit']}",
    }
    if row["std"] is not None:
        facts["over runs"] = f"std {row['std']!r} of {row['runs']} runs"
    if row["reason"]:
        facts["reason"] = str(row["reason"])
    tracer = _Tracer(matrix)
    tidy = _table(row, table)
    if row["record_sha256"]:
        stage = str(row["record"]).split("/")[1]
        made = tracer.record(stage, str(row["record"]), {"sha256": row["record_sha256"]})
    else:
        made = Node("record", str(row["record"]), state=State.ABSENT, detail="nobody has measured this yet")
    return Node(f"number {row['number_id']}", facts=facts, parts=[tidy, made])


def _table(row: Mapping[str, Any], table: Path) -> Node:
    """The tidy row, and whether the table is the one that its own record sealed."""
    node = Node("tidy row", str(table / "numbers.parquet"), detail=f"row {row['number_id']}")
    sealed = table / "record.json"
    if not sealed.exists():
        node.detail += "; the table was made before tables had records of their own"
        return node
    try:
        entry = records.read_record(sealed, stage="table")["outputs"]["parquet"]
    except (DataError, KeyError) as error:
        node.state, node.detail = State.CHANGED, str(error)
        return node
    node.sha256, node.state = entry["sha256"], links.state(table / "numbers.parquet", entry)
    return node


class _Tracer:
    """Follows records to what they were made from; what was shown once is only named after that."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._shown: set[str] = set()

    def record(self, label: str, path: str, entry: Mapping[str, Any]) -> Node:
        """A record of the chain, with its facts, outputs and inputs."""
        file = Path(path)
        node = Node(f"{label} record", path, str(entry["sha256"]), links.state(file, entry, label))
        if path in self._shown:
            node.detail = "shown above"
            return node
        self._shown.add(path)
        if node.state is State.ABSENT:
            node.detail = where_from(path)
            node.facts = self._declared(path)
            return node
        try:
            body = records.read_record(file)
        except DataError as error:
            node.state, node.detail = State.CHANGED, str(error)
            return node
        node.facts = {**record_facts(body), **self._licence(body)}
        ceiling = links.ceiling(body) if body["stage"] == "query" else None
        node.parts = [
            *(self._output(name, file, output) for name, output in body["outputs"].items()),
            *(
                self.record(name, source["path"], source)
                if source["path"].endswith(".json")
                else self._file(name, source["path"], source)
                for name, source in body["inputs"].items()
            ),
            *([] if ceiling is None else [self._ceiling(ceiling)]),
        ]
        return node

    def _ceiling(self, file: Path) -> Node:
        """The record of what the client could send at most, which a query record names by its key."""
        if not file.exists():
            return Node("ceiling record", str(file), state=State.ABSENT, detail=where_from(str(file)))
        return self.record("ceiling", str(file), {"sha256": records.sha256_file(file)})

    def _output(self, label: str, record: Path, entry: Mapping[str, Any]) -> Node:
        return self._file(label, str(record.parent / entry["path"]), entry)

    def _file(self, label: str, path: str, entry: Mapping[str, Any]) -> Node:
        node = Node(label, path, str(entry["sha256"]), links.state(Path(path), entry))
        if node.state is State.ABSENT:
            node.detail = where_from(path)
        elif path in self._shown:
            node.detail = "shown above"
        elif label == "samples" and node.state is State.SAME:
            node.facts = {"runs": _runs(Path(path))}
        self._shown.add(path)
        return node

    def _declared(self, path: str) -> dict[str, str]:
        """What the config pins of a record that isn't here."""
        stage = STAGE_OF_FOLDER.get("/".join(path.split("/")[:2]))
        key = next((part.rpartition("@")[2] for part in path.split("/") if "@" in part), "")
        try:
            spec = self._matrix.spec(key.removesuffix(".json"), stage or "")
        except ConfigError:
            return {}
        declared = {f"pinned {name}": text for name, text in _spec_facts(spec).items()}
        if stage in ("normalize", "truth", "download"):
            name = path.split("/")[2].rpartition("@")[0]
            declared.update(self._licence_of(name))
        return declared

    def _licence(self, body: Mapping[str, Any]) -> dict[str, str]:
        return self._licence_of(str(body["spec"]["name"])) if body["stage"] == "download" else {}

    def _licence_of(self, dataset: str) -> dict[str, str]:
        entry = self._matrix.config.datasets.get(dataset, {})
        entry = self._matrix.config.datasets.get(entry.get("of", ""), entry)
        return {"licence": str(entry["licence"])} if "licence" in entry else {}


def where_from(path: str) -> str:
    """How to get a file that this clone does not have."""
    top = path.split("/")[0]
    return {
        "data": "not here: pull it (`dvc pull data.dvc`), or `snakemake` makes it again",
        "results": "not here: pull it (`dvc pull results.dvc`)",
        "scratch": "not here: never shared, `snakemake` makes it again from what its record pins",
    }.get(top, "not here")


def record_facts(body: Mapping[str, Any]) -> dict[str, str]:
    """What a record says, in short texts by name, in the order in which one asks."""
    found = {"key": str(body["key"]), **_spec_facts(body["spec"])}
    if "valid" in body:
        found["valid"] = "yes" if body["valid"] else "no"
    if gates := body.get("gates"):
        failed = [f"{gate['gate']}: {gate['detail']}" for gate in gates if not gate["ok"]]
        found["gates"] = f"{len(gates) - len(failed)} of {len(gates)} passed" + "".join(
            f"; ✗ {text}" for text in failed
        )
    if source := body.get("source"):
        found["source used"] = _short(source.get("entry", source.get("kind")))
        found |= {f"source file {name}": digest for name, digest in (source.get("files") or {}).items()}
    for name, digest in (body.get("content") or {}).items():
        found[f"content of {name}"] = str(digest)
    if "digest" in body:
        found["artifact digest"] = str(body["digest"])
    if artifact := body.get("artifact"):
        found["artifact"] = f"{artifact.get('version', '')} sha256 {artifact.get('digest', '')}"
    found["code"] = code_text(body.get("code") or {})
    found["lock file"] = str((body.get("code") or {}).get("lock_sha256") or "not recorded")
    if machine := body.get("platform"):
        found["platform"] = _machine(machine)
        found["CPU flags"] = " ".join(machine.get("cpu_flags") or ["not recorded"])
        found["load average"] = (
            f"{_known(machine.get('load_average_before'))} before, {_known(machine.get('load_average_after'))} after"
        )
    for one in body.get("rounds") or ():
        session = (one.get("session") or {}).get("key", "unknown")
        found[f"run {one.get('run')}"] = (
            f"measured {one.get('created')} in session {session}, by {code_text(one.get('code') or {})}, load average "
            f"{_known(one.get('load_average_before'))} before, {_known(one.get('load_average_after'))} after"
        )
    if clients := body.get("clients"):
        found["clients"] = ", ".join(f"{name} {version}" for name, version in clients.items() if version)
    if library := (body.get("client") or {}).get("library"):
        found["client library"] = f"{library['package']} {library['version']}, by envs/{library['environment']}.txt"
    found["made"] = str(body.get("created", "unknown"))
    return found


def code_text(code: Mapping[str, Any]) -> str:
    """Version, commit and, of a tree that differed from it, the digest of the difference."""
    text = f"anncestry {code.get('anncestry', '')} at {code.get('commit') or 'no commit'}"
    if code.get("dirty"):
        text += f" with uncommitted changes (diff sha256 {code.get('diff_sha256')})"
    return text


def _machine(machine: Mapping[str, Any]) -> str:
    limits = machine.get("limits") or {}
    parts = [
        f"{machine.get('id')}: {machine.get('cores')} × {machine.get('cpu_model')}",
        f"{machine.get('memory_gib')} GiB",
        f"kernel {machine.get('kernel')}",
        f"governor {_known(machine.get('governor'))}",
        f"virtualisation {_known(machine.get('virtualisation'))}",
        "limits " + (", ".join(f"{name} {_known(value, 'none')}" for name, value in limits.items()) or "not recorded"),
    ]
    return ", ".join(parts)


def _known(value: Any, otherwise: str = "not known") -> str:
    return otherwise if value is None else str(value)


def _spec_facts(spec: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"spec {name}": _short(value) for name, value in spec.items() if name != "stage" and value not in (None, {})
    }


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "name" in value:
        rest = {name: inner for name, inner in value.items() if name != "name"}
        return f"{value['name']} {_short(rest)}" if rest else str(value["name"])
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(inner)}" for name, inner in value.items())
    return json.dumps(value)


def _runs(samples: Path) -> str:
    """How many samples each run has."""
    try:
        column = parquet.ParquetFile(samples).read(columns=["run"])["run"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        return f"can't be read ({error})"
    counts = sorted(Counter(column).items())
    return f"{len(counts)} runs, {len(column)} samples: " + ", ".join(f"run {run}: {count}" for run, count in counts)
