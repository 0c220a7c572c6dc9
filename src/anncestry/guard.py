"""`anncestry guard`: whether a head is slower, or finds less, than its base, by both at once on one machine.

It makes a folder with a config of its own: the experiment `guard` pairs both sides (docs/duet.md), with the base beside
itself as the control. The workflow measures it as any other; what it says is made from the records of its pairs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tabulate import tabulate  # type: ignore[import-untyped]

from anncestry import workflow
from anncestry.cells import config as config_files
from anncestry.cells.matrix import Matrix
from anncestry.cells.matrix import Pair as PairCell
from anncestry.errors import ConfigError, DataError, UserError, plain
from anncestry.home import HOME
from anncestry.metrics.decide import Outcome, Pair, Rule, Sample, Share, Verdict, judge_all, ratio_of
from anncestry.provenance import running
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.records import read_record, replacing, write_json
from anncestry.report.model.quantities import OF_PAIRS, too_few
from anncestry.runtimes import artifacts

NAME = "guard"
SERVERS_MIN, SERVERS_FIRST = 4, 6
"""Pairs of servers: with fewer than the first nothing is decided; the second are measured before any is judged."""
SERVERS_MOST = 100
MARGIN_MOST = 50.0
"""Percent; both as the schema of the config has them."""
PAIR_S, START_S = 40.0, 20.0
"""About what one workload takes on one fresh pair of servers at least, and what of it their start takes."""
_OF_HEAD = frozenset(
    {
        *("load", "row count", "index complete", "rows findable", "rows findable, filtered", "known rows", "decodable"),
        *("distances", "filter applied", "filter selectivity", "all rows that match", "exact-search oracle"),
    }
)
"""Gates by which a server loses rows or answers wrongly: one that only the head fails is a regression."""
SIDES = ("base", "head")
MADE = ".made"
"""In a folder `config` that a command of this package has made, and may replace."""


class Ruling(StrEnum):
    """A guard's verdict on one quantity."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    NO_REGRESSION = "no regression"
    CANT_TELL = "can't tell"


@dataclass(frozen=True)
class Quantity:
    """A quantity by its name in a pair's record; `worse` is the outcome that is a regression."""

    label: str
    unit: str
    worse: Outcome


_WORSE = {
    "server_cpu_us_per_query": Outcome.MORE,
    "qps": Outcome.LESS,
    "p50_ms": Outcome.MORE,
    "p95_ms": Outcome.MORE,
    "p99_ms": Outcome.MORE,
    "pss_anon_mib": Outcome.MORE,
}
QUANTITIES: Mapping[str, Quantity] = {
    **{name: Quantity(*OF_PAIRS[name], worse) for name, worse in _WORSE.items()},
    "recall": Quantity("recall", "fraction", Outcome.LESS),
}
DEFAULT = ("server_cpu_us_per_query", "qps", "p50_ms", "recall")


@dataclass(frozen=True)
class Asked:
    """Two sides, each NAME of a system, NAME=PATH of what was built of it, or NAME@EFFORT of its searches.

    What is asked of them; for how long (`budget_s`, for the pairs alone).
    """

    base: str
    head: str
    datasets: Sequence[str]
    workloads: Sequence[str]
    quantities: Sequence[str] = DEFAULT
    target_recall: float | None = None
    margin_percent: float = 5.0
    budget_s: float = 600.0


def from_file(path: Path) -> dict[str, Any]:
    """What a file asks of a guard (guard.schema.yaml), by its names; ConfigError names the file and the key."""
    body = config_files.read_yaml(path)
    config_files.validate(body, NAME, path)
    given: dict[str, Any] = dict(body)
    for name in set(given.get("quantities", ())) - set(QUANTITIES):
        raise ConfigError(f"{path}: quantities: {name!r} is unknown; known: {', '.join(QUANTITIES)}")
    return given


@dataclass(frozen=True)
class Finding:
    """What is known of one quantity: head over base, with its 95 % interval (of recall: head minus base)."""

    dataset: str
    workload: str
    quantity: str
    base: float | None
    head: float | None
    change: float | None
    low: float | None
    high: float | None
    said: Ruling
    note: str = ""


# The folder


def prepare(asked: Asked, config: Path, folder: Path) -> workflow.Choice:
    """Write the config of a guard into `folder`; ConfigError or UserError if it can't be measured as asked."""
    duet = config_files.load(config).duet
    blocks_s = 8 * duet.blocks * duet.slice_s
    # Each workload has one control, on the first dataset.
    round_s = max(PAIR_S, START_S + blocks_s) * len(asked.workloads) * (len(asked.datasets) + 1)
    servers = min(int(asked.budget_s / round_s), SERVERS_MOST)
    if servers < SERVERS_MIN:
        raise UserError(
            f"--budget: {asked.budget_s:g} s are too short: {SERVERS_MIN} pairs of servers for {len(asked.workloads)} "
            f"workload(s) on {len(asked.datasets)} dataset(s), each workload with its control, need about "
            f"{SERVERS_MIN * round_s:.0f} s"
        )
    if not 0 < asked.margin_percent <= MARGIN_MOST:
        raise UserError(f"--margin {asked.margin_percent:g}: must be more than 0 and at most {MARGIN_MOST:g} %")
    unknown = set(asked.quantities) - set(QUANTITIES)
    if unknown:
        raise UserError(f"--quantity {min(unknown)}: unknown; known: {', '.join(QUANTITIES)}")
    target = copied(config, folder)
    main, systems, workloads = (
        config_files.read_yaml(target / f"{name}.yaml") for name in ("config", "systems", "workloads")
    )
    paired = [_side(side, given, systems) for side, given in zip(SIDES, (asked.base, asked.head), strict=True)]
    if paired[0] == paired[1]:
        raise UserError(f"--base and --head are both {asked.base}: the control of every guard measures that")
    names = [_workload(name, asked.target_recall, workloads) for name in asked.workloads]
    block = {"datasets": list(asked.datasets), "topologies": ["standalone"], "workloads": names, "paired": paired}
    experiment = {
        # A path is of this machine, and is not what was measured.
        "title": " against ".join(re.sub("=.*", " (built)", side, flags=re.S) for side in (asked.head, asked.base)),
        "matrix": [block],
        "duet": {
            **(main.get("duet") or {}),
            "first": min(SERVERS_FIRST, servers),
            "most": servers,
            # Wider, a difference of nothing is not surely within the margin.
            "interval_percent": asked.margin_percent / 2,
        },
        "rounds": {"minutes": asked.budget_s / 60},
        "decide": {"margin_percent": asked.margin_percent},
    }
    for name, content in (("systems.yaml", systems), ("workloads.yaml", workloads)):
        (target / name).write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    (target / "experiments").mkdir(exist_ok=True)
    (target / "experiments" / f"{NAME}.yaml").write_text(yaml.safe_dump(experiment, allow_unicode=True))
    choice = workflow.Choice(target.resolve(), NAME)
    workflow.expand(choice)
    return choice


def copied(config: Path, folder: Path) -> Path:
    """A fresh copy of the config in `folder`; UserError where one lies that is somebody's own, or a run is at work."""
    target = folder / "config"
    if target.resolve() == config.resolve():
        raise UserError(f"--folder {folder}: holds the config that is to be copied; choose another folder")
    refuse_foreign(folder)
    if running.at_work(folder):
        raise UserError(f"--folder {folder}: a run is at work there: wait for its end, or choose another folder")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    (target / MADE).touch()  # before the copy, which may end early
    config_files.copy(config, target)
    _keep_sources(target / "datasets.yaml")
    return target


_FILES: Mapping[str, Sequence[str]] = {
    "file": ("path", "base", "queries", "neighbors", "distances"),
    "parquet": ("path",),
    "archive": ("path",),
}
"""By kind of source, the keys of files of this machine."""


def _keep_sources(path: Path) -> None:
    """Have the files of one's own datasets found from the folder, too: their paths are of where the command runs."""
    datasets = config_files.read_yaml(path)
    moved = False
    for entry in datasets.values():
        for source in entry.get("sources", ()) if isinstance(entry, dict) else ():
            names = _FILES.get(source.get("kind"), ())
            for name in names:
                given = source.get(name)
                if isinstance(given, str) and not given.startswith(("/", "~", "$")):
                    source[name], moved = str(Path(given).resolve()), True
    if moved:
        path.write_text(yaml.safe_dump(datasets, sort_keys=False, allow_unicode=True))


def refuse_foreign(folder: Path) -> None:
    """UserError if `folder` holds a config that no such command has made: it would be lost."""
    if (folder / "config").exists() and not (folder / "config" / MADE).exists():
        raise UserError(f"--folder {folder}: holds a config that would be replaced; choose another folder")


def _side(side: str, given: str, systems: dict[str, Any]) -> str | dict[str, Any]:
    """The system that is a side, as a matrix names it; what was built by somebody becomes an entry of its own."""
    name, is_built, path = given.partition("=")
    name, is_tuned, effort = name.partition("@")
    # "SYSTEM=" is what is left of SYSTEM=$PATH where nothing was built: it must not measure the released one.
    if (is_built and not path) or (is_tuned and (is_built or not effort.isdigit())):
        raise UserError(f"--{side} {given}: is neither SYSTEM, nor SYSTEM=PATH, nor SYSTEM@EFFORT with a whole number")
    if name not in systems:
        raise UserError(f"--{side}: no system {name!r} in systems.yaml; known: {', '.join(sorted(systems))}")
    if not path:
        return {"system": name, "effort": int(effort)} if effort else name
    systems[f"{name}-{side}"] = built(systems, name, Path(path))
    return f"{name}-{side}"


def built(systems: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The entry of a system as `name`, but of the program at `path`. It is loaded as that is, in one go.

    (How a system is loaded is its own: an entry that is `of` another does not inherit it.)
    """
    parent = systems[name]
    whole = {**systems.get(parent.get("of", ""), {}), **parent}
    load = {key: value for key, value in parent.get("load", {}).items() if key not in ("upgrade_from", "kill")}
    own = {key: value for key, value in whole.items() if key not in ("of", "artifact", "load")}
    return {**own, **({"load": load} if load else {}), "artifact": artifacts.kept(path)}


def _workload(name: str, target_recall: float | None, workloads: dict[str, Any]) -> str:
    if name not in workloads:
        raise UserError(f"--workload: no workload {name!r} in workloads.yaml")
    if target_recall is None:
        return name
    fresh = f"{name}-recall{100 * target_recall:g}".replace(".", "p")
    workloads[fresh] = {**workloads[name], "target_recall": target_recall}
    return fresh


def measure(choice: workflow.Choice, folder: Path, cores: int, says_json: bool = False) -> None:
    """Run the workflow in the folder; UserError if it does not come to its end, with what failed and why.

    With `says_json`, what it prints goes to standard error, as standard output is the caller's.
    """
    command = [sys.executable, "-m", "snakemake", "-s", str(HOME / "Snakefile"), "--cores", str(cores), "all"]
    command += ["--config", f"experiment={choice.experiment}", f"config_dir={choice.folder}"]
    if running.run_whole(command, cwd=folder, stdout=2 if says_json else None):
        why = failure(workflow.expand(choice), folder) or f"see above, and {folder / 'logs'}"
        raise UserError(f"{why}; what was measured stays in {folder}: the same command goes on from there")


def failure(matrix: Matrix, folder: Path) -> str:
    """What of a guard failed last, by its ledgers; empty if they name nothing that is missing."""
    for cell in matrix.loaded:
        ledger = Ledger(folder / Ledger.of(matrix.specs[cell.load], cell.load).path)
        said = "" if (folder / cell.load_path).exists() else ledger.failure()
        if said:
            return f"{cell.system} could not be loaded with {cell.dataset} ({said})"
    for pair in matrix.pairs:
        ledger = Ledger(folder / Ledger.of(matrix.specs[pair.a.load], pair.a.load).path)
        said = "" if (folder / pair.path).exists() else ledger.failure(pair.pair)
        if said:
            return f"{pair.b.system} beside {pair.a.system} could not be measured ({said})"
    return ""


# What is said


def findings(matrix: Matrix, folder: Path, quantities: Sequence[str], rule: Rule) -> list[Finding]:
    """What the records of the pairs say, corrected for all that is said together.

    DataError for a record that is missing; an invalid one says nothing, with the gate that failed.
    """
    measured = [(pair, _record(folder, pair)) for pair in matrix.pairs]
    controls = {pair.workload: record for pair, record in measured if pair.is_control}
    places = [(pair, record, name) for pair, record in measured if not pair.is_control for name in quantities]
    # What is invalid is no evidence: it may lack what a verdict needs, and is nothing that others are corrected for.
    judged = [_evidence(record, name) for _, record, name in places if _tells(record, name)]
    beside = [_evidence(record, name) for record in controls.values() for name in quantities if _tells(record, name)]
    verdicts = iter(judge_all(judged, rule, beside))
    found = []
    for pair, record, name in places:
        where = pair.dataset, pair.workload, name
        if not _tells(record, name):
            failed = [gate for gate in record["gates"] if not gate["ok"]]
            note = f"invalid: {failed[0]['gate']}: {failed[0]['detail']}" if failed else ""
            note = note or too_few(record, name) or "not recorded"
            said = Ruling.REGRESSED if _head_alone_fails(record, controls.get(pair.workload)) else Ruling.CANT_TELL
            found.append(Finding(*where, None, None, None, None, None, said, note))
            continue
        verdict = next(verdicts)
        said = ruling_of(verdict, QUANTITIES[name], rule)
        base, head, change, low, high = _numbers(record, name)
        target = record["spec"]["workload"].get("target_recall")
        if name == "recall" and said is Ruling.REGRESSED and target is not None and head is not None and head >= target:
            reached = f"less than base's, and the target of {target:g} is reached"
            found.append(Finding(*where, base, head, change, low, high, Ruling.NO_REGRESSION, reached))
            continue
        note = _of_control(controls.get(pair.workload), name, said)
        if not note and said is Ruling.CANT_TELL:
            note = verdict.reason or verdict.words
        found.append(Finding(*where, base, head, change, low, high, said, note))
    return found


def _head_alone_fails(record: Mapping[str, Any], control: Mapping[str, Any] | None) -> bool:
    """Whether the head loses rows or answers wrongly, and the base does not, beside it and beside itself."""
    failed = [gate["gate"] for gate in record["gates"] if not gate["ok"]]
    of_head = [name.removeprefix("b: ") for name in failed if name.startswith("b: ")]
    sound = control is None or bool(control["valid"])
    return sound and bool(_OF_HEAD.intersection(of_head)) and not any(name.startswith("a: ") for name in failed)


def _tells(record: Mapping[str, Any], name: str) -> bool:
    """Whether a pair's record says something of a quantity: it is valid, and the quantity could be read."""
    known = name == "recall" or (name in record["quantities"] and not too_few(record, name))
    return bool(record["valid"]) and known


def ruling_of(verdict: Verdict, quantity: Quantity, rule: Rule) -> Ruling:
    """A difference within the margin is no regression, however surely it is one."""
    if verdict.p_apart is not None and verdict.p_apart < rule.level:
        return Ruling.NO_REGRESSION
    if verdict.outcome is quantity.worse:
        return Ruling.REGRESSED
    return Ruling.IMPROVED if verdict.decided else Ruling.CANT_TELL


def status(found: Sequence[Finding]) -> int:
    """Exit status: 3 if anything regressed, else 4 if anything can't be told, else 0."""
    said = {finding.said for finding in found}
    return 3 if Ruling.REGRESSED in said else 4 if Ruling.CANT_TELL in said or not found else 0


def _record(folder: Path, pair: PairCell) -> dict[str, Any]:
    path = folder / pair.path
    if not path.exists():
        raise DataError(f"{path}: was not measured; run the guard again in the same folder")
    return read_record(path, stage="pair", key=pair.pair)


def _evidence(record: Mapping[str, Any], name: str) -> Pair:
    if name == "recall":
        base, head = (_recall_of(record["sides"][side]) for side in ("a", "b"))
        return Pair(base, head, name)
    entry = record["quantities"][name]
    none = Sample(entry["a"] or 0.0, 0.0, 0)
    return Pair(none, none, quantity=name, ratio=ratio_of(entry, len(record["rounds"])))


def _recall_of(side: Mapping[str, Any]) -> Share:
    by_query = side["by_query"]
    each = {query: value for query, value in zip(by_query["query"], by_query["by_distance"], strict=True)}
    return Share(side["recall"]["by_distance"]["value"], side["queries"], each)


def _numbers(record: Mapping[str, Any], name: str) -> tuple[float | None, ...]:
    """Base, head, the change, and its interval."""
    if name == "recall":
        pair = _evidence(record, name)
        (verdict,) = judge_all([pair])
        return pair.a.mean, pair.b.mean, pair.b.mean - pair.a.mean, verdict.low, verdict.high
    entry = record["quantities"][name]
    return entry["a"], entry["b"], entry["value"], entry["low"], entry["high"]


def _of_control(record: Mapping[str, Any] | None, name: str, said: Ruling) -> str:
    """A remark where the base beside itself seems to differ: then the machine makes such differences."""
    entry = None if record is None or name == "recall" else record["quantities"].get(name)
    if entry is None or entry["low"] is None or entry["low"] <= 1 <= entry["high"] or said is Ruling.NO_REGRESSION:
        return ""
    return f"the base beside itself: × {entry['value']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})"


# Output


def text(asked: Asked, found: Sequence[Finding], form: str = "simple") -> str:
    """A line for the whole, and a table; `form` is tabulate's: "simple" for a terminal, "github" for Markdown."""
    whole = {0: "no regression", 3: "REGRESSED", 4: "can't tell within the budget"}[status(found)]
    head = f"{asked.head} against {asked.base}: {whole} (margin {asked.margin_percent:g} %)"
    several = len({finding.dataset for finding in found}) > 1
    rows = [
        [
            f"{f.dataset}, {f.workload}" if several else f.workload,
            f"{QUANTITIES[f.quantity].label} ({QUANTITIES[f.quantity].unit})",
            *("–" if value is None else f"{value:,.4g}" for value in (f.base, f.head)),
            _change(f),
            f.said.value,
            f.note,
        ]
        for f in found
    ]
    columns = ["workload", "quantity", "base", "head", "head / base (95 %)", "verdict", "note"]
    table = tabulate(rows, columns, tablefmt=form, disable_numparse=True)
    return f"{'## ' if form == 'github' else ''}{head}\n\n{table}\n"


def _change(finding: Finding) -> str:
    if finding.change is None or finding.low is None or finding.high is None:
        return "–"
    sign, form = ("", "{:+.4f}") if finding.quantity == "recall" else ("× ", "{:.3f}")
    value, low, high = (form.format(number) for number in (finding.change, finding.low, finding.high))
    return f"{sign}{value} ({low} to {high})"


def smaller_is_better(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """For github-action-benchmark (customSmallerIsBetter): head's value, or its inverse where more is better."""
    entries = []
    for f in found:
        if f.head:
            more_is_better = QUANTITIES[f.quantity].worse is Outcome.LESS
            value, unit = (1 / f.head, f"1/({QUANTITIES[f.quantity].unit})") if more_is_better else (f.head, "")
            name = f"{f.dataset}, {f.workload}: {QUANTITIES[f.quantity].label}"
            extra = f"{f.said.value}: {_change(f)} {f.note}".strip()
            entries.append({"name": name, "unit": unit or QUANTITIES[f.quantity].unit, "value": value, "extra": extra})
    return entries


def junit(found: Sequence[Finding]) -> str:
    """A test case a finding: failed where it regressed, skipped where nothing can be told."""
    suite = ElementTree.Element("testsuite", name="anncestry guard", tests=str(len(found)))
    for f in found:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{f.dataset}.{f.workload}", name=f.quantity)
        message = plain(f"{_change(f)} {f.note}".strip())  # XML can't hold control characters
        if f.said is Ruling.REGRESSED:
            ElementTree.SubElement(case, "failure", message=message)
        elif f.said is Ruling.CANT_TELL:
            ElementTree.SubElement(case, "skipped", message=message)
    for kind in ("failure", "skipped"):
        suite.set({"failure": "failures"}.get(kind, kind), str(len(suite.findall(f".//{kind}"))))
    return ElementTree.tostring(suite, encoding="unicode")


OTAVA_RATIO = "head / base"


def otava(asked: Asked, found: Sequence[Finding], folder: Path, at: datetime) -> None:
    """Add this guard as a row to otava.csv in the folder, for Apache Otava, which reads it by the otava.yaml beside it.

    Of each quantity there are head's value, and head over base (of recall the difference), which holds less noise of
    the machine. A column is added for what earlier rows have not; what a row has not is "nan".
    """
    path, columns = folder / "otava.csv", {}
    row = {"time": at.isoformat(timespec="seconds"), "base": asked.base, "head": asked.head, "status": status(found)}
    metrics: dict[str, dict[str, Any]] = {}
    for f in found:
        name = f"{f.dataset}.{f.workload}.{f.quantity}"
        direction = 1 if QUANTITIES[f.quantity].worse is Outcome.LESS else -1
        for column, value in ((name, f.head), (f"{name} {OTAVA_RATIO}", f.change)):
            columns[column] = math.nan if value is None else value
            metrics[column] = {"column": column, "direction": direction}
    rows = pd.read_csv(path, dtype=str, keep_default_na=False) if path.exists() else pd.DataFrame()
    rows = pd.concat([rows, pd.DataFrame([{**row, **columns}], dtype=object)]).fillna("nan")
    with replacing(path) as temporary:
        rows.to_csv(temporary, index=False, lineterminator="\n")
    test = {
        "type": "csv",
        "file": path.name,
        "time_column": "time",
        "attributes": [name for name in row if name != "time"],
        "metrics": metrics,
        "csv_options": {"delimiter": ",", "quote_char": '"'},
    }
    (folder / "otava.yaml").write_text(yaml.safe_dump({"tests": {NAME: test}}, sort_keys=False, allow_unicode=True))


def keys(matrix: Matrix) -> dict[str, str]:
    """What a cache of a guard's folder goes by: a digest of the keys of datasets and truths, and that of the driver."""
    from anncestry.drive import build

    named = sorted({key for cell in matrix.loaded for key in (cell.download, cell.vectors, cell.truth)})
    return {"data": hashlib.sha256("\n".join(named).encode()).hexdigest()[:16], "driver": build.digest()[:16]}


def write(asked: Asked, found: Sequence[Finding], folder: Path) -> None:
    """guard.{txt,md,json}, benchmark.json, junit.xml and otava.{csv,yaml} in the folder."""
    (folder / "guard.txt").write_text(text(asked, found))
    (folder / "guard.md").write_text(text(asked, found, "github"))
    (folder / "junit.xml").write_text(junit(found))
    (folder / "benchmark.json").write_text(json.dumps(smaller_is_better(found), indent=2) + "\n")
    otava(asked, found, folder, datetime.now(UTC))
    write_json(folder / "guard.json", facts(found))


def facts(found: Sequence[Finding]) -> dict[str, Any]:
    """What is said, for programs: the exit status, and of each quantity base, head, change, interval and verdict."""
    return {"status": status(found), "findings": [asdict(finding) for finding in found]}
