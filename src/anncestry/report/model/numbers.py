"""The tidy table: one row a number, each with the record it comes from, or with the reason why it isn't there."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_numeric_dtype

from anncestry.cells import features, indexes
from anncestry.cells.features import Body, Metric, at
from anncestry.errors import DataError
from anncestry.metrics import defects
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.platform import IDENTITY
from anncestry.provenance.records import read_record, replacing, sha256_file
from anncestry.report.model import derived, quantities

PAIRED = "pair"
"""The phase of the numbers of pairs."""
CLIENT_SHARE = 0.5
"""A cell that asks more than this share of the client's own ceiling is client-bound."""
BUSY_SHARE = 0.9
"""So is one whose client needs more than this share of the processor time that the ceiling took it, second by second:
the ceiling was measured once, and a machine that is slower since has a lower one."""

_DTYPES: dict[str, str] = {
    "number_id": "str",
    "dataset": "str",
    "distance": "str",
    "system": "str",
    "engine": "str",
    "topology": "str",
    "workload": "str",
    "rebuild": "Int64",
    "arm": "str",
    "k": "Int64",
    "nq": "Int64",
    "client": "str",
    "clients": "Int64",
    "duration_s": "float64",
    "filter": "str",
    "ef_search": "Int64",
    "effort": "str",
    "target_recall": "float64",
    "phase": "str",
    "metric": "str",
    "value": "float64",
    "unit": "str",
    "std": "float64",
    "low": "float64",
    "high": "float64",
    "interval": "str",
    "runs": "Int64",
    "client_bound": "boolean",
    "defect_share": "float64",
    "disturbed": "boolean",
    "rebuilds": "Int64",
    "rebuild_mean": "float64",
    "rebuild_std": "float64",
    "valid": "bool",
    "reason": "str",
    "note": "str",
    "record": "str",
    "record_sha256": "str",
    "key": "str",
}
_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
COLUMNS = tuple(_DTYPES)
_ORDER = ["dataset", "system", "topology", "workload", "phase", "metric", "rebuild", "number_id"]


@dataclass(frozen=True)
class _Record:
    path: str
    sha256: str
    body: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.body["key"])

    def failed_gates(self) -> str:
        """What makes this record invalid, as one text; empty if it is valid."""
        failed = [f"{gate['gate']}: {gate['detail']}" for gate in self.body.get("gates", ()) if not gate["ok"]]
        if self.body.get("valid", True) and not failed:
            return ""
        return "; ".join(failed) or "marked invalid, without a failed gate"


def tidy(cells: Sequence[Mapping[str, Any]], facts: Facts | None = None) -> pd.DataFrame:
    """Gather every number of the expected `cells` into one frame, a row a number, in a fixed order.

    Each of `cells` names dataset, system, topology, workload and load_path, query_path, recall_path (the latter two
    may be None); a record that no cell names is left out.
    A number that can't be had (record missing, invalid, or without it) keeps its row: its value is NaN and `reason`
    says why. DataError for a record of another cell, for one that was made from something else than is there, and for
    records of two machines: their numbers are never set side by side. `facts` are those of all records, where `cells`
    are only some.
    """
    records: dict[str, _Record] = {}

    def find(cell: Mapping[str, Any], stage: str) -> _Record | None:
        text = cell.get(f"{stage}_path")
        if not text or not Path(text).exists():
            return None
        path = str(text)
        if path not in records:
            records[path] = _Record(path, sha256_file(Path(path)), read_record(Path(path), stage=stage))
        _check_place(records[path], cell)
        return records[path]

    found = [
        (cell, find(cell, "load"), find(cell, "query"), find(cell, "recall")) for cell in cells if not _paired(cell)
    ]
    pairs = [(cell, find(cell, "pair")) for cell in cells if _paired(cell)]
    if facts is None:
        facts = Facts()
        for record in records.values():
            facts.add(record.path, record.body)
    rows: list[dict[str, Any]] = []
    loads_done: set[str] = set()
    for cell, load, query, recall in found:
        load_path = str(cell["load_path"])
        ledger = _ledger(cell)
        load_reason = _missing(ledger) if load is None else load.failed_gates()
        if load_path not in loads_done:
            loads_done.add(load_path)
            row = {**facts.of(cell, workload=""), "disturbed": _disturbed(load)}
            rows += _rows(row, load_path, load, load_reason, quantities.of_load)
        if not cell.get("query_path"):
            continue
        query_reason = _query_reason(query, load, load_reason, _missing(ledger, cell) if query is None else "")
        row = facts.of(cell, workload=str(cell["workload"]), query=query)
        rows += _rows(row, str(cell["query_path"]), query, query_reason, quantities.of_query)
        if cell.get("recall_path"):
            reason = _recall_reason(recall, query, query_reason)
            where = {**row, "client_bound": None, "disturbed": None}
            scored = _rows(where, str(cell["recall_path"]), recall, reason, quantities.of_recall)
            rows += (_as_disturbed(each, query) for each in scored)
    for cell, pair in pairs:
        reason = _missing(_ledger(cell), cell) if pair is None else pair.failed_gates()
        row = {**facts.of(cell, workload=str(cell["workload"])), **_of_sides(pair)}
        rows += _rows(row, str(cell["pair_path"]), pair, reason, quantities.of_pair)
    df = frame(rows)
    twice = df["number_id"][df["number_id"].duplicated()]
    if len(twice):
        raise DataError(f"number {twice.iloc[0]} is there twice: a cell is listed more than once")
    return _over_rebuilds(df).sort_values(_ORDER, kind="stable", ignore_index=True)


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a frame with the columns and types of the tidy table."""
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(_DTYPES)


def _paired(cell: Mapping[str, Any]) -> bool:
    return "pair_path" in cell


def _of_sides(pair: _Record | None) -> dict[str, Any]:
    """What a reader must know of a pair: the defects of the worse side, and where CPU and QPS disagree."""
    if pair is None:
        return {"note": ""}
    sides = pair.body["sides"]
    shares = [at(side, ("defects", "share", "value")) for side in sides.values()]
    said = [f"{name}: {defects.words(side['defects'])}" for name, side in sides.items() if side.get("defects")]
    notes = [text for text in said if not text.endswith(": ")]
    if pair.body["depends_on_contention"]:
        notes.insert(0, quantities.DEPENDS)
    known = [share for share in shares if share is not None]
    return {"defect_share": max(known, default=None), "note": "; ".join(notes)}


_SAME = ["dataset", "system", "topology", "workload", "phase", "metric"]


def _over_rebuilds(df: pd.DataFrame) -> pd.DataFrame:
    """The frame with what independent builds of one load say together, the same in the rows of all of them.

    `rebuilds` that have the number, the mean of their values, and their sample standard deviation (n - 1): what
    differs from build to build, apart from what differs from run to run of one (`std`).
    """
    builds = df.groupby(_SAME, dropna=False)["value"]
    return df.assign(
        rebuilds=builds.transform("count").astype("Int64"),
        rebuild_mean=builds.transform("mean"),
        rebuild_std=builds.transform("std"),
    )


def first_builds(df: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first build of every load: what tables and charts show, each number with one record behind it.

    Without those of pairs, which are of two systems each.
    """
    return df[(df["rebuild"].fillna(1) == 1) & (df["phase"] != PAIRED)].reset_index(drop=True)


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """`json.dumps(rows, indent=1)`, ten times as fast: a row holds plain values only. NaN and infinity are refused."""
    if not rows:
        return "[]"
    text = json.JSONEncoder(allow_nan=False, separators=(",\n  ", ": ")).encode
    return "[\n" + ",\n".join(f" {{\n  {text(row)[1:-1]}\n }}" for row in rows) + "\n]"


# What a spreadsheet takes for a formula, unless it is a number (with its unit or its interval) to the end.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.,]+ ?[%\w]*(?: \([\d.,+\- %to]+\))?\Z)")


def inert(df: pd.DataFrame) -> pd.DataFrame:
    """The frame for CSV: a text that a spreadsheet would take for a formula begins with an apostrophe."""

    def quoted(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value

    texts = {name: column.map(quoted) for name, column in df.items() if not is_numeric_dtype(column)}
    return df.assign(**{str(name): column for name, column in texts.items()})


def write(df: pd.DataFrame, out_dir: Path) -> None:
    """Write `df` as numbers.csv, numbers.json and numbers.parquet: the same rows, the same bytes for an equal frame."""
    with replacing(out_dir / "numbers.csv") as temporary:
        inert(df).to_csv(temporary, index=False, lineterminator="\n")
    with replacing(out_dir / "numbers.json") as temporary:
        temporary.write_text(as_json(rows_of(df)) + "\n")
    with replacing(out_dir / "numbers.parquet") as temporary:
        # Without pandas' own metadata, which names versions, the bytes depend on the rows alone.
        table = pa.Table.from_pandas(df, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(table, temporary, compression="zstd")


def read(out_dir: Path) -> pd.DataFrame:
    """Read back what `write` wrote."""
    path = out_dir / "numbers.parquet"
    try:
        df: pd.DataFrame = pq.read_table(path).to_pandas(types_mapper=_NULLABLE.get)
        return df.reindex(columns=list(COLUMNS)).astype(_DTYPES)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: not a table of numbers ({error})") from None


NO_LIBRARY = ("", "bytes")
"""What `client` is of loads, and of cells whose requests were encoded before."""


def is_plain(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a load, or of requests of one query that were encoded before."""
    return row["client"] in NO_LIBRARY and row["nq"] in (1, None)


def by_bytes(df: pd.DataFrame) -> pd.DataFrame:
    """The frame without what was asked through client libraries, or by requests of several vectors.

    Those are other questions, with tables of their own.
    """
    return df[(df["client"].isin(NO_LIBRARY)) & (df["nq"].fillna(1) == 1)]


def rows_of(df: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a tidy frame as plain Python values, with None where there is no number."""
    # By column: a page of a thousand cells has millions of values.
    columns = [
        [None if absent else value for value, absent in zip(column.tolist(), column.isna().tolist(), strict=True)]
        for _, column in df.items()
    ]
    names = [str(name) for name in df.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


class Facts:
    """What is known of a system, dataset or workload from any record, so that a missing cell can still be placed."""

    def __init__(self) -> None:
        self._engines: dict[str, str] = {}
        self._distances: dict[str, str] = {}
        self._workloads: dict[str, Mapping[str, Any]] = {}
        self._efforts: dict[str, str | None] = {}
        self._machine: dict[str, tuple[Any, str]] = {}

    def add(self, path: str, body: Mapping[str, Any]) -> None:
        """Learn from a record; DataError if it was measured on another machine than one before it."""
        spec = body["spec"]
        # Not every record says everything: a query names its system, its load also the engine.
        if "engine" in spec.get("system", ()):
            self._engines[spec["system"]["name"]] = str(spec["system"]["engine"])
        if "metric" in spec.get("dataset", ()):
            self._distances[spec["dataset"]["name"]] = str(spec["dataset"]["metric"])
        if "index" in spec and "system" in spec:
            self._efforts[spec["system"]["name"]] = indexes.EFFORT.get(spec["index"]["type"], "ef_search")
        if "workload" in spec:
            self._workloads[spec["workload"]["name"]] = spec["workload"]
        machine = body.get("platform") or {}
        for name in ("id", *IDENTITY):
            if machine.get(name) is None:
                continue
            value, other = self._machine.setdefault(name, (machine[name], path))
            if machine[name] != value:
                raise DataError(
                    f"{path}: measured on a machine with {name} {machine[name]!r}, {other} on one with {value!r}: "
                    "numbers of two platforms are no table"
                )

    def of(self, cell: Mapping[str, Any], *, workload: str, query: _Record | None = None) -> dict[str, Any]:
        """The columns that say where a number belongs, and what a reader must know of every number of its cell."""
        asked = query.body["spec"]["workload"] if query else self._workloads.get(workload, {})
        name = self._efforts.get(cell["system"], "ef_search")
        effort = (query.body.get("ef_search") if query else None) or asked.get(name or "") or None
        return {
            "dataset": str(cell["dataset"]),
            "distance": self._distances.get(cell["dataset"], ""),
            "system": str(cell["system"]),
            "engine": self._engines.get(cell["system"], ""),
            "topology": str(cell["topology"]),
            "workload": workload,
            "rebuild": int(cell.get("rebuild", 1)),
            "arm": str(cell.get("arm", "")),
            "k": asked.get("k"),
            "nq": asked.get("nq", 1) if asked else None,
            "client": asked.get("client", "bytes") if workload else "",
            "clients": asked.get("clients"),
            "duration_s": asked.get("duration_s"),
            "filter": _filter_text(asked.get("filter")),
            "ef_search": effort,
            "effort": f"{indexes.EFFORT_WORDS[name]} {effort}" if effort and name else "",
            "target_recall": asked.get("target_recall"),
            "client_bound": _client_bound(query),
            "defect_share": at(query.body, ("defects", "share", "value")) if query else None,
            "note": defects.words(query.body["defects"]) if query and query.body.get("defects") else "",
            "disturbed": _disturbed(query),
        }


def _client_bound(query: _Record | None) -> bool | None:
    """Whether the client was near its own ceiling, by its rate or by its processor time; None where that is not known.

    Its processor time a second is the same at the ceiling however fast the machine is, its rate is not.
    """
    client = (query.body.get("client") if query else None) or {}
    ceiling = client.get("ceiling") or {}
    rate = at(query.body, ("summary", "qps", "value")) if query else None
    if not ceiling.get("qps") or rate is None:
        return None
    cost, least = (of.get("cpu_us_per_query") for of in (client, ceiling))
    busy = bool(cost and least) and rate * cost > BUSY_SHARE * ceiling["qps"] * least
    return bool(rate > CLIENT_SHARE * ceiling["qps"] or busy)


def _disturbed(record: _Record | None) -> bool | None:
    """Whether others disturbed a measurement above the limits of its record; None where that was not kept."""
    above = at(record.body, ("disturbance", "above")) if record else None
    return None if above is None else bool(above)


def _as_disturbed(row: dict[str, Any], query: _Record | None) -> dict[str, Any]:
    """A row of a recall record with what disturbed the queries, where it is a time or a rate; answers stay the same."""
    if row["unit"] in quantities.DISTURBED and query is not None:
        said = "; ".join(_disturbances(query.body)) if row["value"] is not None else ""
        row |= {"disturbed": _disturbed(query), "note": "; ".join(filter(None, (row["note"], said)))}
    return row


def _disturbances(body: Mapping[str, Any]) -> Iterator[str]:
    return (f"disturbed: {text}" for text in at(body, ("disturbance", "above")) or ())


def _rows(
    where: Mapping[str, Any],
    path: str,
    record: _Record | None,
    reason: str,
    expected: Callable[[Body], Iterable[Metric]],
) -> Iterator[dict[str, Any]]:
    """A row for each `expected` metric; with a `reason` none has a value, whatever the record says."""
    key = record.key if record else Path(path).stem.rpartition("@")[2]
    body = derived.added(record.body) if record else {}
    names = [where[name] for name in ("dataset", "system", "topology", "workload")]
    for metric in expected(body):
        few = quantities.too_few(body, metric.name) if metric.at[0] in ("summary", "quantities") else ""
        value, std, runs = _reading(body, metric, path) if not (reason or few) else (None, None, None)
        low, high, interval = _interval(body, metric, path) if value is not None else (None, None, "")
        absent = "" if value is not None else few or quantities.why_absent(body, metric)
        yield {
            **where,
            "number_id": number_id(*names, key, metric.phase, metric.name),
            "phase": metric.phase,
            "metric": metric.name,
            "value": value,
            "unit": metric.unit,
            "std": std,
            "low": low,
            "high": high,
            "interval": interval,
            "runs": runs,
            "valid": not reason and not absent,
            "reason": reason or absent,
            "note": "; ".join(filter(None, (_note(body, metric), where["note"]))) if value is not None else "",
            "record": path,
            "record_sha256": record.sha256 if record else "",
            "key": key,
        }


def number_id(*parts: str) -> str:
    """The name of a number: `n` and ten hex digits over the cell, its key, the phase and the metric, not the value."""
    return "n" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _reading(body: Mapping[str, Any], metric: Metric, path: str) -> tuple[float | None, float | None, int | None]:
    """Value, sample standard deviation and number of runs of a metric; None where the record has none."""
    entry = at(body, metric.at)
    if isinstance(entry, Mapping):
        runs = entry.get("runs")
        count = len(runs) if isinstance(runs, list) else None
        return _number(entry.get("value"), metric, path), _number(entry.get("std"), metric, path), count
    # A load is measured once; what a session measured in passing isn't a mean over runs.
    return _number(entry, metric, path), None, 1 if body.get("stage") == "load" else None


def _interval(body: Mapping[str, Any], metric: Metric, path: str) -> tuple[float | None, float | None, str]:
    """The ends of a number's interval and how it was found, or why it has none."""
    entry = at(body, metric.at)
    if isinstance(entry, Mapping) and entry.get("interval"):
        low, high = (_number(entry.get(end), metric, path) for end in ("low", "high"))
        if metric.phase == "query" and len(entry.get("runs") or ()) == 1 and "of one run" in entry["interval"]:
            # Of runs that differ by 10 %, it would hold the truth in a quarter to a half (`make bench-decisions`).
            return None, None, "none: one run, and what differs from run to run is not in it"
        return low, high, str(entry["interval"]) if low is not None else f"none: {entry['interval']}"
    if metric.unit in quantities.COUNTED:
        return None, None, "none: counted"
    return None, None, "none: measured once" if body.get("stage") == "load" else "none: not resampled"


def _number(value: Any, metric: Metric, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{path}: {'.'.join(metric.at)} is {value!r}, expected a number")
    return float(value) if math.isfinite(value) else None


def _note(body: Mapping[str, Any], metric: Metric) -> str:
    """What a reader must know of a number that is valid: a schedule that was not kept, a limit that is not its own."""
    notes = (feature.note(metric, body) for feature in features.among(body))
    said = [next((note for note in notes if note), "")]
    if metric.unit in quantities.DISTURBED:
        said += _disturbances(body)
    return "; ".join(filter(None, said))


def _ledger(cell: Mapping[str, Any]) -> Ledger:
    """That of the cell's load, which may have no record."""
    if _paired(cell):
        return Ledger(Path(cell["load_path"].replace("/load/", "/attempts/", 1)).with_suffix(""))
    spec = {axis: {"name": cell[axis]} for axis in ("dataset", "system", "topology")}
    return Ledger.of(spec, _key(cell["load_path"]))


def _key(path: object) -> str:
    """The key at the end of a record's name."""
    return Path(str(path)).stem.rpartition("@")[2]


def _missing(ledger: Ledger, cell: Mapping[str, Any] | None = None) -> str:
    """Why there is no record of a cell's queries, or of the load if no cell is named."""
    failed = ledger.failure(_key(cell.get("pair_path") or cell["query_path"]) if cell else "")
    return f"{quantities.TRIED}{failed}" if failed else quantities.NOT_MEASURED


def _query_reason(query: _Record | None, load: _Record | None, load_reason: str, missing: str) -> str:
    if query is None:
        return missing
    if load is None:
        return quantities.LOAD_MISSING
    if query.body["load_key"] != load.key:
        raise DataError(f"{query.path}: asked load {query.body['load_key']}, but {load.path} is load {load.key}")
    return query.failed_gates() or (quantities.LOAD_INVALID + load_reason if load_reason else "")


def _recall_reason(recall: _Record | None, query: _Record | None, query_reason: str) -> str:
    if recall is None:
        return quantities.NOT_MEASURED
    if query is None:
        return quantities.QUERIES_MISSING
    if recall.body["query_key"] != query.key:
        raise DataError(
            f"{recall.path}: scores query record {recall.body['query_key']}, but {query.path} is {query.key}"
        )
    digests = [
        entry["sha256"]
        for label, entry in recall.body["inputs"].items()
        if label == "query" or Path(entry["path"]).name == Path(query.path).name
    ]
    if query.sha256 not in digests:
        was = digests[0][:12] + "…" if digests else "none named"
        raise DataError(
            f"{recall.path}: made from another query record (sha256 {was}) than {query.path} ({query.sha256[:12]}…)"
        )
    return query_reason or recall.failed_gates()


def _check_place(record: _Record, cell: Mapping[str, Any]) -> None:
    """Refuse a record that stands at the path of another cell."""
    spec = record.body["spec"]
    for name in ("dataset", "system", "topology", "workload"):
        # A recall's spec holds keys only; its query record was checked in its stead.
        found = spec[name]["name"] if name in spec else cell[name]
        if found != cell[name]:
            raise DataError(f"{record.path}: of {name} {found}, expected {cell[name]}")


def _filter_text(asked: Any) -> str:
    """A filter in words; one of a shape not known here as JSON, rather than as a guess."""
    if not asked:
        return ""
    if asked == {"field": "payload"}:
        return "payload: each query's own conditions"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "share"}:
        return f"{asked['field']}: {100 * asked['share']:g} % of rows"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "from_share"}:
        return f"{asked['field']}: all but the first {100 * asked['from_share']:g} % of rows"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "side", "halvings"}:
        where = {"same": "near", "opposite": "far from"}[asked["side"]]
        return f"region: {100 / 2 ** asked['halvings']:.2g} % of rows, {where} the query"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "in"}:
        return f"{asked['field']} in {{{', '.join(str(value) for value in asked['in'])}}}"
    return json.dumps(asked, sort_keys=True)
