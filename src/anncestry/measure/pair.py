"""The pair stage: what was measured on every fresh pair of servers, put together to ratios of side b to side a."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry.cells.spec import BLOCKS_MIN
from anncestry.cells.stage import PAIR_FILES
from anncestry.drive.client import ERROR, OK
from anncestry.drive.driver import client_facts
from anncestry.errors import DataError
from anncestry.measure import recall, samples
from anncestry.measure.duet import workload_of
from anncestry.measure.publish import combine, measured_by_need, same_machine
from anncestry.metrics import defects, duet, resources, rounds
from anncestry.metrics.duet import Blocks, Estimate, Slice, Waited
from anncestry.provenance import records
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.gates import Gate

SIDES = ("a", "b")
QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_FAILURES_MAX = 20
_COLUMNS = ("run", "due_ns", "start_ns", "latency_ns", "status")


@dataclass(frozen=True)
class Measured:
    """The slices and samples of a pair on all pairs of servers, from the published files."""

    files: Mapping[str, Path]
    slices_spec: Mapping[str, Any]

    @cached_property
    def table(self) -> dict[str, NDArray[Any]]:
        """The slices, in order: their columns."""
        read = parquet.ParquetFile(self.files["slices"]).read()
        return {name: read[name].to_numpy() for name in read.column_names}

    @property
    def servers(self) -> int:
        """How many pairs of servers."""
        return int(self.table["run"].max()) + 1 if len(self.table["run"]) else 0

    @cached_property
    def samples(self) -> list[dict[str, NDArray[Any]]]:
        """By side: run, due, start, end (ns) and status of every request, in order of their ends."""
        found = []
        for name in SIDES:
            read = parquet.ParquetFile(self.files[f"samples_{name}"]).read(columns=list(_COLUMNS))
            columns = {column: read[column].to_numpy() for column in _COLUMNS}
            columns["end_ns"] = columns["due_ns"] + columns["latency_ns"]
            placed = np.lexsort((columns["end_ns"], columns["run"]))
            found.append({column: values[placed] for column, values in columns.items()})
        return found

    def slices(self, number: int) -> list[Slice]:
        """Those of one pair of servers: good answers that ended in them, and the CPU that their server used.

        `answers` ended in the measured part, from `discard_ms` after the thaw until the signal to freeze; `all_answers`
        whenever the server ran, as what it used is known of the whole.
        """
        table, discard_ns = self.table, int(1e6 * self.slices_spec["discard_ms"])
        found = []
        for i in np.flatnonzero(table["run"] == number).tolist():
            ends = self._ends(int(table["side"][i]), number)
            start, end = int(table["thawed_ns"][i]) + discard_ns, int(table["freeze_ns"][i])
            whole = np.searchsorted(ends, [int(table["thaw_ns"][i]), int(table["frozen_ns"][i])])
            part = np.searchsorted(ends, [start, end])
            counts = int(part[1] - part[0]), int(whole[1] - whole[0])
            ours = sum(float(table[name][i]) for name in ("cpu_s", "other_side_cpu_s", "client_cpu_s"))
            others = max(0.0, float(table["host_cpu_s"][i]) - ours) / float(table["wall_s"][i])
            found.append(Slice(SIDES[table["side"][i]], start, end, *counts, float(table["cpu_s"][i]), others))
        return found

    def blocks(self, what: str) -> list[Blocks]:
        """What the blocks of each pair of servers say of `what`: see `duet.blocks`."""
        return [duet.blocks(self.slices(number), what) for number in range(self.servers)]

    def _ends(self, side: int, number: int) -> NDArray[np.int64]:
        of = self.samples[side]
        return of["end_ns"][(of["run"] == number) & (of["status"] == OK)]  # type: ignore[no-any-return]

    def latencies(self, number: int) -> list[tuple[Waited, Waited]]:
        """By block of slices of one pair of servers: how long the requests of side a and b waited.

        Of all that started in the measured part of a slice. What has no answer yet when the freeze is asked is watched
        until then; what failed never has one, but what ran into its deadline counts with the time that it waited.
        """
        blocks: list[tuple[list[Waited], list[Waited]]] = []
        of_sides = [{name: of[name][of["run"] == number] for name in _COLUMNS} for of in self.samples]
        for i, part in enumerate(self.slices(number)):
            if i % duet.BLOCK == 0:
                blocks.append(([], []))
            side = SIDES.index(part.side)
            of = of_sides[side]
            started = (of["start_ns"] >= part.start_ns) & (of["start_ns"] < part.end_ns)
            due_ns, waited_ns = of["due_ns"][started], of["latency_ns"][started]
            ended = due_ns + waited_ns <= part.end_ns
            ms = np.where(ended, waited_ns, part.end_ns - due_ns) / 1e6
            ms[ended & (of["status"][started] == ERROR)] = np.inf
            blocks[-1][side].append(Waited(ms, ended))
        whole = [block for block in blocks if sum(map(len, block)) == duet.BLOCK]
        return [(Waited.together(a), Waited.together(b)) for a, b in whole]


def summarise(measured: Measured, memory: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The ratios of b to a: of every quantity, over pairs of servers, with what each of them says."""
    each = [measured.slices(number) for number in range(measured.servers)]
    found: dict[str, Any] = {}
    for name, what in (("qps", "qps"), ("server_cpu_us_per_query", "cpu")):
        blocks = [duet.blocks(slices, what) for slices in each]
        estimates, of_others = _adjusted(blocks, -1 if what == "qps" else 1)
        ratio = duet.over_servers(estimates)
        found[name] = {
            **ratio.facts(),
            **of_others,
            "started_second": ratio.order_facts(),
            **_levels(each, what),
            "servers": [
                {**estimate.facts(), **_levels([slices], what)}
                for estimate, slices in zip(estimates, each, strict=True)
            ],
            "autocorrelation": [duet.autocorrelation(slices, what) for slices in each],
            "unpaired": duet.unpaired(each, what).facts(),
        }
    latencies = [measured.latencies(number) for number in range(measured.servers)]
    for name, q in QUANTILES.items():
        levels = {}
        for place, side in enumerate(SIDES):
            value = Waited.together([block[place] for of in latencies for block in of]).quantile(q)
            levels[side] = value if math.isfinite(value) else None
        blocks = [duet.blocks_of_quantile(of, q, slices) for of, slices in zip(latencies, each, strict=True)]
        estimates, of_others = _adjusted(blocks, 1)
        found[name] = {**duet.over_servers(estimates).facts(), **of_others, **levels}
    for name in ("pss_mib", "pss_anon_mib"):
        pairs = [(a[name], b[name]) for a, b in memory]
        if all(a and b for a, b in pairs):
            logs = [math.log(b / a) for a, b in pairs]
            found[name] = {
                **duet.over_servers([duet.exact(log) for log in logs]).facts(),
                **{side: float(np.mean([pair[i] for pair in pairs])) for i, side in enumerate(SIDES)},
            }
    return found


def _adjusted(servers: Sequence[Blocks], sign: int) -> tuple[list[Estimate], dict[str, Any]]:
    """The estimates, and beside them what others made of the ratio: the slope, and the ratio as it was."""
    estimates, slope = duet.adjusted(servers, sign)
    as_it_was = duet.over_servers([duet.of_blocks(each.logs) for each in servers])
    return estimates, {"per_core_of_others": slope, "unadjusted": as_it_was.facts()}


def _levels(each: Sequence[Sequence[Slice]], what: str) -> dict[str, float]:
    """What both sides came to, of all slices: to give the ratio a size; speeds of rounds are the absolute numbers."""
    levels = {}
    for side in SIDES:
        own = [part for slices in each for part in slices if part.side == side]
        answers = sum(part.answers if what == "qps" else part.all_answers for part in own)
        if what == "qps":
            levels[side] = answers / max(1e-9, sum(part.end_ns - part.start_ns for part in own) / 1e9)
        else:
            levels[side] = 1e6 * sum(part.cpu_s for part in own) / max(1, answers)
    return levels


def depends_on_contention(quantities: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether QPS and CPU a query say opposite things: which is better depends on how busy the machine is.

    One side answers surely more a second, and surely needs more CPU for each answer; or the intervals of the two (that
    of CPU inverted) do not meet.
    """
    qps, cpu = (quantities[name] for name in ("qps", "server_cpu_us_per_query"))
    if any(of[bound] is None for of in (qps, cpu) for bound in ("low", "high")):
        return False
    fewer_low, fewer_high = 1 / cpu["high"], 1 / cpu["low"]
    apart = qps["low"] > fewer_high or fewer_low > qps["high"]
    return (
        bool(apart and (qps["low"] > 1) != (fewer_low > 1))
        or (qps["low"] > 1 and cpu["low"] > 1)
        or (qps["high"] < 1 and cpu["high"] < 1)
    )


def contention(measured: Measured) -> dict[str, Any]:
    """Under what the ratio was seen: by side the cores that its server had while it ran, and what others used.

    `others_more_cores` tells by how many cores others used more beside b than beside a, and whether chance explains it.
    """
    table = measured.table
    wall_s = (table["frozen_ns"] - table["thaw_ns"]) / 1e9
    ours = table["cpu_s"] + table["other_side_cpu_s"] + table["client_cpu_s"]
    others = np.maximum(0.0, table["host_cpu_s"] - ours)
    cores = {}
    for place, side in enumerate(SIDES):
        own = table["side"] == place
        cores[side] = float(table["cpu_s"][own].sum() / max(1e-9, wall_s[own].sum()))
    freeze_ms = (table["frozen_ns"] - table["freeze_ns"]) / 1e6
    return {
        "server_cores": cores,
        "others_pct": float(100 * others.sum() / max(1e-9, table["wall_s"].sum())),
        "others_more_cores": duet.more_beside_b(measured.blocks("cpu")).facts(),
        "client_cores": float(table["client_cpu_s"].sum() / max(1e-9, table["wall_s"].sum())),
        "frozen_cpu_share": float(table["other_side_cpu_s"].sum() / max(1e-9, ours.sum())),
        "freeze_ms": {name: float(np.quantile(freeze_ms, q)) for name, q in (("p50", 0.5), ("max", 1.0))},
    }


def blocks_so_far(folder: Path, spec: Mapping[str, Any], key: str, count: int) -> list[Blocks]:
    """What decides on further pairs of servers, of the first `count` that were measured and are not published."""
    found: list[Blocks] = []
    for number in range(count):
        record = folder / f"run-{number}" / "record.json"
        measured = Measured(records.verify_outputs(record, _read(record, spec, key)), spec["slices"])
        found.append(duet.blocks(measured.slices(number), "qps"))
    return found


def gates_of(measured: Measured) -> list[Gate]:
    """What must hold of the slices themselves."""
    blocks = [len(measured.slices(number)) // duet.BLOCK for number in range(measured.servers)]
    total = sum(blocks)
    frozen = contention(measured)["frozen_cpu_share"]
    return [
        Gate("blocks", total >= BLOCKS_MIN and min(blocks, default=0) >= 2, f"{total} blocks of {duet.BLOCK} slices"),
        Gate("frozen means frozen", frozen < 0.01, f"the frozen side used {100 * frozen:.2f} % of the CPU"),
    ]


def run(
    spec: Mapping[str, Any],
    key: str,
    folder: Path,
    loads: Mapping[str, Path],
    truth_record: Path,
    vectors_record: Path,
    target: Path,
) -> dict[str, Any]:
    """Write the record of a pair and its files from what lies in `folder`; DataError if a part of it is missing."""
    recall.verify_truth(truth_record, spec["truth"], vectors_record)
    rule = spec["workload"]["rounds"]
    count = measured_by_need(folder, rule)
    runs = [_read(folder / f"run-{number}" / "record.json", spec, key) for number in range(count)]
    _refuse_other_origins(folder, runs)
    records.refuse_other_vectors(folder / "run-0" / "record.json", runs[0], vectors_record)
    paths = {label: target.with_name(f"{target.stem}.{label}.parquet") for label in PAIR_FILES}
    for label, path in paths.items():
        parts = [folder / f"run-{number}" / each["outputs"][label]["path"] for number, each in enumerate(runs)]
        with records.replacing(path) as temporary:
            samples.join(parts, temporary)
    decided = folder / "rounds.json"
    stated = records.read_json(decided) if decided.exists() else {}
    body = made_again(spec, paths, runs, truth_record, vectors_record)
    newest = max(runs, key=lambda each: each["created"])
    return records.write_record(
        target,
        stage="pair",
        key=key,
        spec=spec,
        body={
            **body,
            "need": {
                **rounds.decide(Measured(paths, spec["slices"]).blocks("qps"), rule, duet.to_stop_percent),
                **stated,
            },
            "resources": resources.over_runs(
                parquet.ParquetFile(paths["resources"]).read(), "query", [tuple(each["window_s"]) for each in runs]
            ),
            "rounds": [_round(each) for each in runs],
            **Ledger.of_measured(spec).quote(key),
            "platform": newest["platform"],
            "clients": newest["clients"],
        },
        inputs={**loads, "truth": truth_record, "vectors": vectors_record},
        outputs=paths,
    )


def made_again(
    spec: Mapping[str, Any],
    files: Mapping[str, Path],
    runs: Sequence[Mapping[str, Any]],
    truth_record: Path | None,
    vectors_record: Path,
) -> dict[str, Any]:
    """All of a pair's record that its files and the records of its `runs` (or their kept parts) give."""
    measured = Measured(files, spec["slices"])
    of_sides = [
        combine(
            [[{**gate, "gate": f"{name}: {gate['gate']}"} for gate in each["sides"][name]["gates"]] for each in runs]
        )
        for name in SIDES
    ]
    gates = [*of_sides[0], *of_sides[1], *map(asdict, gates_of(measured))]
    quantities = summarise(measured, [each["memory"] for each in runs])
    return {
        "valid": all(gate["ok"] for gate in gates),
        "gates": gates,
        "quantities": quantities,
        "depends_on_contention": depends_on_contention(quantities),
        "contention": contention(measured),
        "sides": {
            name: {
                **_side([each["sides"][name] for each in runs]),
                **_answers(spec, name, len(runs), files[f"samples_{name}"], truth_record, vectors_record),
            }
            for name in SIDES
        },
    }


def _side(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the record holds of one side, beside its numbers."""
    newest = max(each, key=lambda run: run["created"])
    jobs = [job for run in each for job in run["client"]["jobs"]]
    failures = sum((Counter(run["failures"]) for run in each), Counter()).most_common(_FAILURES_MAX)
    return {
        "load_key": newest["load_key"],
        **{
            name: newest[name]
            for name in ("ef_search", "tuning", "selectivity", "filters", "artifact")
            if name in newest
        },
        "failures": dict(failures),
        "client": client_facts(jobs, sum(run["client"]["requests"] for run in each)),
        "server": {name: value for name, value in newest["server"].items() if not name.endswith("_s")},
    }


def _answers(
    spec: Mapping[str, Any], name: str, servers: int, path: Path, truth: Path | None, vectors: Path
) -> dict[str, Any]:
    """What a side's answers were worth, as of a cell: defects, and recall over pairs of servers and by query."""
    workload = workload_of(spec, name)
    by_run = samples.by_run(path, workload)
    found = {"defects": defects.summarise([samples.of(by_run, workload, number) for number in range(servers)])}
    if truth is None:
        return found
    of = {"spec": {"workload": workload}, "rounds": [None] * servers, "key": "", "valid": True}
    scored = recall.score(of, path, truth, vectors)
    return found | {part: scored[part] for part in ("recall", "by_query", "distribution", "queries", "unanswered")}


def _round(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is one pair of servers' own; with `sides`, all that is needed to make the record again."""
    names = ("run", "created", "code", "session", "started_first", "frozen_by", "memory", "window_s", "sides")
    return {name: run[name] for name in names}


def _read(path: Path, spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    record = records.read_record(path, stage="servers", key=key)
    if record["spec"] != spec:
        raise DataError(f"{path}: its spec is not the one that its key stands for")
    records.verify_outputs(path, record)
    return record


def _origin(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is one for all pairs of servers, beside their spec: by what it is called."""
    of_sides = {
        f"{what} of side {name}": value
        for name in SIDES
        for what, value in (
            ("build of the index", run["inputs"][f"index_{name}"]["sha256"]),
            ("artifact", run["sides"][name]["artifact"]["digest"]),
            ("driver", run["sides"][name]["client"]["jobs"][0]["driver"]),
        )
    }
    return {
        **of_sides,
        "client libraries": run["clients"],
        "vectors": records.vectors_of(run),
        **same_machine(run),
    }


def _refuse_other_origins(folder: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """DataError where pairs of servers ran on different builds of a load, on another machine or by another driver."""
    origins = [_origin(run) for run in runs]
    for name, first in origins[0].items():
        if any(origin[name] != first for origin in origins):
            found = ", ".join(dict.fromkeys(str(origin[name]) for origin in origins))
            raise DataError(
                f"{folder}: its pairs of servers differ in what they were measured by or on ({name}: {found}): "
                f"remove that folder, and the next call of the workflow measures it anew"
            )
