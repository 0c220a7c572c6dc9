"""`anncestry why`: which number is meant, and the chain behind it.

The chain is the number's row, its records, and every file that they name, each compared with its digest now.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.cells.matrix import Matrix
from anncestry.cells.plan import undrawn
from anncestry.cells.stage import RECORDS, STAGES, stage_at
from anncestry.errors import ConfigError, DataError
from anncestry.provenance import records
from anncestry.provenance.attempts import Ledger, words
from anncestry.provenance.records import State
from anncestry.report.model import numbers

SELECTORS = ("dataset", "system", "topology", "workload", "phase", "metric")
"""Columns of the tidy table by which a number may be asked for."""

_SHOWN = 8
_REPEATED = ("artifact", "code", "lock file", "platform", "CPU flags", "clients")
"""Facts that most records of a chain share: said in full where they differ from those above."""

_MARKS = {State.SAME: "✓", State.REMADE: "✓", State.CHANGED: "✗", State.ABSENT: "·"}


def find(matrix: Matrix, number: str | None, selectors: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """The folder of the table and the row of the one number that is meant; DataError says what there is instead.

    `number` is an id, the beginning of one (`#` before it, as in a page's address, is ignored), or None; `selectors`
    map columns to values. The present table is asked first, then, for an id, every other one that is here.
    """
    current = Path(matrix.table_path).parent
    if number is None:
        if not selectors:
            raise DataError("name a number: its id, or --" + " … --".join(SELECTORS))
        if not (current / "numbers.parquet").exists():
            raise DataError(f"{current}: {undrawn(matrix)}")
        return current, _select(numbers.read(current), selectors)
    start = number.lstrip("#").lower()
    folders = [current, *sorted(path.parent for path in STAGES["table"].folder.glob("*/numbers.parquet"))]
    looked = [folder for folder in dict.fromkeys(folders) if (folder / "numbers.parquet").exists()]
    for folder in looked:
        frame = numbers.read(folder)
        rows = frame[frame["number_id"].str.startswith(start)]
        if len(rows) == 1:
            return folder, numbers.rows_of(rows)[0]
        if len(rows):
            raise DataError(f"{len(rows)} numbers begin with {number!r}: {_listed(rows)}; give more digits")
    if not looked:
        raise DataError(f"{current}: {undrawn(matrix)}; without it there is no number {number!r} here")
    names = ", ".join(folder.name for folder in looked)
    more = "" if current in looked else f"; {current}: {undrawn(matrix)}"
    raise DataError(f"no number {number!r} in {names}: ids are an n and ten hex digits, as on the page{more}")


def _select(frame: pd.DataFrame, selectors: Mapping[str, str]) -> dict[str, Any]:
    chosen = frame
    for column, value in selectors.items():
        values = sorted(set(chosen[column]) - {""})
        chosen = chosen[chosen[column] == value]
        if not len(chosen):
            close = difflib.get_close_matches(value, values, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(values) or 'none'}"
            raise DataError(f"no number with {column} {value!r}; {hint}")
    if len(chosen) > 1:
        open_ones = [name for name in SELECTORS if name not in selectors and chosen[name].nunique() > 1]
        narrow = f"; narrow it by --{' or --'.join(open_ones)}" if open_ones else ""
        raise DataError(f"{len(chosen)} numbers are meant: {_listed(chosen)}{narrow}")
    return numbers.rows_of(chosen)[0]


def _listed(frame: pd.DataFrame) -> str:
    names = ("dataset", "system", "topology", "workload", "metric")
    lines = [
        f"{row['number_id']} ({' '.join(str(row[name]) for name in names if row[name])})"
        for row in numbers.rows_of(frame.head(_SHOWN))
    ]
    return ", ".join(lines) + (", …" if len(frame) > _SHOWN else "")


# The chain


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
        yield self
        for part in self.parts:
            yield from part.walk()

    def plain(self) -> dict[str, Any]:
        """As JSON takes it; what is empty is left out."""
        body = {**vars(self), "state": str(self.state), "parts": [part.plain() for part in self.parts]}
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
        stage = stage_at(row["record"])
        made = tracer.record(stage.spec if stage else "", str(row["record"]), {"sha256": row["record_sha256"]})
    else:
        made = Node("record", str(row["record"]), state=State.ABSENT, detail="nobody has measured this yet")
    return Node(f"number {row['number_id']}", facts=facts, parts=[tidy, made])


def _table(row: Mapping[str, Any], table: Path) -> Node:
    """The tidy row, and whether the table is the one that its own record sealed."""
    node = Node("tidy row", str(table / "numbers.parquet"), detail=f"row {row['number_id']}")
    sealed = table / "record.json"
    if not sealed.exists():
        node.state = State.CHANGED
        node.detail += f"; nothing says what the table was when it was made: {sealed} is missing"
        return node
    try:
        entry = records.read_record(sealed, stage="table")["outputs"]["parquet"]
    except (DataError, KeyError) as error:
        node.state, node.detail = State.CHANGED, str(error)
        return node
    node.sha256, node.state = entry["sha256"], records.state(table / "numbers.parquet", entry)
    return node


class _Tracer:
    """Follows records to what they were made from; what was shown once is only named after that."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._shown: set[str] = set()

    def record(self, label: str, path: str, entry: Mapping[str, Any]) -> Node:
        """A record of the chain, with its facts, outputs and inputs."""
        file = Path(path)
        node = Node(f"{label} record", path, str(entry["sha256"]), records.state(file, entry, label))
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
        licence = self._licence_of(str(body["spec"]["name"])) if body["stage"] == "download" else {}
        node.facts = {**record_facts(body), **licence}
        ceiling = records.ceiling_of(body)
        node.parts = [
            *(self._file(name, str(file.parent / made["path"]), made) for name, made in body["outputs"].items()),
            *(self._input(name, source) for name, source in body["inputs"].items()),
            *([] if ceiling is None else [self._ceiling(ceiling)]),
        ]
        return node

    def _ceiling(self, file: Path) -> Node:
        """The record of what the client could send at most, which a query record names by its key."""
        if not file.exists():
            return Node("ceiling record", str(file), state=State.ABSENT, detail=where_from(str(file)))
        return self.record("ceiling", str(file), {"sha256": records.sha256_file(file)})

    def _input(self, label: str, entry: Mapping[str, Any]) -> Node:
        return (self.record if entry["path"].endswith(".json") else self._file)(label, entry["path"], entry)

    def _file(self, label: str, path: str, entry: Mapping[str, Any]) -> Node:
        node = Node(label, path, str(entry["sha256"]), records.state(Path(path), entry))
        if node.state is State.ABSENT:
            node.detail = where_from(path)
        elif path in self._shown:
            node.detail = "shown above"
        elif label == "slices" and node.state is State.SAME:
            node.facts = {"slices": _slices(Path(path))}
        elif label.startswith("samples") and node.state is State.SAME:
            node.facts = {"runs": _runs(Path(path))}
        self._shown.add(path)
        return node

    def _declared(self, path: str) -> dict[str, str]:
        """What the config pins of a record that isn't here."""
        stage = stage_at(path)
        names = stage.match(path) if stage is not None and stage in RECORDS.values() else None
        if stage is None or names is None:
            return {}
        try:
            spec = self._matrix.spec(names["key"], stage.spec)
        except ConfigError:
            return {}
        declared = {f"pinned {name}": text for name, text in _spec_facts(spec).items()}
        if stage.top == "data":
            declared.update(self._licence_of(names["dataset"]))
        return declared

    def _licence_of(self, dataset: str) -> dict[str, str]:
        entry = self._matrix.config.datasets.get(dataset)
        return {} if entry is None else {"licence": entry.licence}


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
    facts = {"key": str(body["key"]), **_spec_facts(body["spec"])}
    if "valid" in body:
        facts["valid"] = "yes" if body["valid"] else "no"
    if gates := body.get("gates"):
        failed = [f"; ✗ {gate['gate']}: {gate['detail']}" for gate in gates if not gate["ok"]]
        facts["gates"] = f"{len(gates) - len(failed)} of {len(gates)} passed{''.join(failed)}"
    if attempts := body.get("attempts"):
        facts["attempts"] = f"{words(attempts)} ({Ledger.of_record(body)[0].path})"
    if source := body.get("source"):
        facts["source used"] = _short(source.get("entry", source.get("kind")))
        facts |= {f"source file {name}": digest for name, digest in (source.get("files") or {}).items()}
        if reader := source.get("reader"):
            facts["reader"] = _short(reader)
    for name, digest in (body.get("content") or {}).items():
        facts[f"content of {name}"] = str(digest)
    if "digest" in body:
        facts["artifact digest"] = str(body["digest"])
    if artifact := body.get("artifact"):
        facts["artifact"] = f"{artifact.get('version', '')} sha256 {artifact.get('digest', '')}"
    code = body.get("code") or {}
    facts |= {"code": code_text(code), "lock file": str(code.get("lock_sha256") or "not recorded")}
    if machine := body.get("platform"):
        facts["platform"] = _machine(machine)
        facts["CPU flags"] = " ".join(machine.get("cpu_flags") or ["not recorded"])
        facts["load average"] = _load_average(machine)
    for one in body.get("rounds") or ():
        session = (one.get("session") or {}).get("key", "unknown")
        facts[f"run {one.get('run')}"] = (
            f"measured {one.get('created')} in session {session}, by {code_text(one.get('code') or {})}, "
            f"load average {_load_average(one)}"
        )
    if clients := body.get("clients"):
        facts["clients"] = ", ".join(f"{name} {version}" for name, version in clients.items() if version)
    if library := (body.get("client") or {}).get("library"):
        facts["client library"] = f"{library['package']} {library['version']}, by envs/{library['environment']}"
    facts["made"] = str(body.get("created", "unknown"))
    return facts


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


def _load_average(facts: Mapping[str, Any]) -> str:
    return f"{_known(facts.get('load_average_before'))} before, {_known(facts.get('load_average_after'))} after"


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


def _slices(path: Path) -> str:
    """How the time of a pair was cut, by pair of servers."""
    table = parquet.read_table(path, columns=["run", "side"]).to_pylist()
    counted = Counter((row["run"], "ab"[row["side"]]) for row in table)
    servers = sorted({run for run, _ in counted})
    return ", ".join(
        f"pair {run + 1} of servers: {counted[run, 'a']} of side a, {counted[run, 'b']} of b" for run in servers
    )


def _runs(samples: Path) -> str:
    """How many samples each run has."""
    try:
        column = parquet.ParquetFile(samples).read(columns=["run"])["run"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        return f"can't be read ({error})"
    counts = sorted(Counter(column).items())
    return f"{len(counts)} runs, {len(column)} samples: " + ", ".join(f"run {run}: {count}" for run, count in counts)


# For people


def lines(node: Node) -> list[str]:
    """The chain as a tree: ✓ what is what it was, ✗ what is not, · what isn't in this clone."""
    return [node.what, *(f"  {name}: {value}" for name, value in node.facts.items()), *_below(node.parts, "", {})]


def _below(nodes: Sequence[Node], indent: str, shown: dict[str, str]) -> list[str]:
    lines: list[str] = []
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        head = f"{indent}{'└' if last else '├'}─ {_MARKS[node.state]} {node.what}"
        lines.append(" ".join(filter(None, (head, node.path, f"sha256 {node.sha256[:12]}…" if node.sha256 else ""))))
        inner = indent + ("   " if last else "│  ")
        bar = "│ " if node.parts else "  "
        if node.state in (State.CHANGED, State.REMADE):
            lines.append(f"{inner}{bar}{node.state}")
        if node.detail:
            lines.append(f"{inner}{bar}{node.detail}")
        for name, value in node.facts.items():
            again = name in _REPEATED and shown.get(name) == value
            lines.append(f"{inner}{bar}{name}: {'as above' if again else value}")
            shown[name] = value
        lines += _below(node.parts, inner, shown)
    return lines


def broken(node: Node) -> list[str]:
    """Paths of what is not what it was."""
    return sorted({part.path for part in node.walk() if part.state is State.CHANGED})
