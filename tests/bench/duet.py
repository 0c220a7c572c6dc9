"""What pairs tell, on this machine: A/A comparisons, planted differences, and rounds in the same time.

python tests/bench/duet.py [TURNS] [CONDITION]      (default: 1 of each, quiet and busy; 0: only report)

Weaviate 1.27.0 on Fashion-MNIST is paired with itself, under three workloads (A/A: their intervals should hold 1, but
for 5 in 100), and with itself at a higher search effort, which costs some 5 % more processor time (ef 220), or gives
some 10 % fewer answers (ef 235), with four clients: planted differences; their true size is that of all together.
A turn has 6 fresh pairs of servers, of which a comparison alone would take less than 5 minutes. "Busy" turns are under
a background load that this makes (a process that keeps a core busy for two seconds of every three). Each turn adds its
comparisons to docs/duet.csv, a line each; the report, and the table of docs/duet.md, are of all lines.
Beside it stands what the same slices say without regard to what others used in each of them (unadjusted), what they say
unpaired, and what rounds say in the same time: each pair of servers as a round of each side.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry import guard  # noqa: E402
from anncestry.metrics.decide import Pair, Rule, Sample, judge, judge_all  # noqa: E402
from anncestry.metrics.duet import half_width_percent  # noqa: E402
from tests.bench.lines import Lines  # noqa: E402

SYSTEM, DATASET = "weaviate-1.27.0", "fashion-mnist-784-euclidean"
CONTROLS = ("k10-clients2", "k10-clients4", "k10-clients8")
PLANTED, EFFORTS = "k10-clients4", (220, 235)
SERVERS = 6
"""Pairs of servers a comparison: one workload takes some 35 s on each, 3 min 30 s together."""
CONDITIONS = ("quiet", "busy")
QUANTITIES = {
    "qps": "queries per second",
    "server_cpu_us_per_query": "CPU a query",
    "p50_ms": "p50",
    "p99_ms": "p99",
}
BESIDE = {"unadjusted_percent": "unadjusted", "unpaired_percent": "unpaired", "rounds_percent": "rounds"}
OF_QUANTITY = ("ratio", "low", "high", *BESIDE, "second", "second_low", "second_high")
COLUMNS = (
    *("date", "commit", "condition", "kind", "pair", "servers", "valid", "others_percent", "guard"),
    *(f"{name}_{part}" for name in QUANTITIES for part in OF_QUANTITY),
)
LINES, DOC = Lines(ROOT / "docs" / "duet.csv", COLUMNS), ROOT / "docs" / "duet.md"
HEADING = "## How sure it is\n"
GOALS = "goals: 28 of 30 A/A hold 1, 9 of 10 planted found, ± 6 % of QPS and 3 % of CPU a query"


def main(turns: int, conditions: Sequence[str], folder: Path) -> None:
    for _ in range(turns):
        for condition in conditions:
            known = LINES.read()
            kinds = len(CONTROLS) + len(EFFORTS)
            number = sum(line["condition"] == condition for line in known) // kinds + 1
            LINES.add(measure(folder, condition, number))
            print(f"{condition} {number} measured", file=sys.stderr, flush=True)
    known = LINES.read()
    for condition in CONDITIONS:
        print("\n".join(["", *report(condition, known)]))
    print(f"\n{GOALS}")
    DOC.write_text(DOC.read_text().partition(HEADING)[0] + section(known))
    print(f"written to {DOC.relative_to(ROOT)}, from {LINES.path.relative_to(ROOT)}")


def config_of(folder: Path, number: int) -> Path:
    """A copy of the config, with an experiment of A/A pairs and planted ones, and pairs of this number."""
    target = folder / "config"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "config", target)
    epochs = yaml.safe_load((target / "epochs.yaml").read_text())
    # An epoch of its own gives each turn keys, orders and servers of its own; the loads are shared.
    epochs["pair"]["epoch"] = 1000 + number
    (target / "epochs.yaml").write_text(yaml.safe_dump(epochs))
    where = {"datasets": [DATASET], "topologies": ["standalone"]}
    matrix: list[dict[str, Any]] = [{**where, "workloads": list(CONTROLS), "paired": [SYSTEM, SYSTEM]}]
    matrix += [
        {**where, "workloads": [PLANTED], "paired": [SYSTEM, {"system": SYSTEM, "effort": effort}]}
        for effort in EFFORTS
    ]
    duet = {"first": SERVERS, "most": SERVERS}
    experiment = {"title": "Pairs", "matrix": matrix, "duet": duet}
    (target / "experiments" / "pairs.yaml").write_text(yaml.safe_dump(experiment))
    return target


def measure(folder: Path, condition: str, number: int) -> list[dict[str, Any]]:
    """One turn: each A/A comparison and each planted one, as lines of the file."""
    place = folder.resolve()
    place.mkdir(parents=True, exist_ok=True)
    at = CONDITIONS.index(condition) * 1000 + number
    config = config_of(place, at)
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "8", "all"]
    command += ["--config", "experiment=pairs", f"config_dir={config}"]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with background(condition == "busy"):
        done = subprocess.run(
            command, cwd=place, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{condition} {number}: snakemake failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    records = [json.loads(path.read_text()) for path in sorted((place / "results" / "pair").rglob("*.json"))]
    return [line_of(record, condition) for record in records if record["spec"]["epoch"] == 1000 + at]


def line_of(record: Mapping[str, Any], condition: str) -> dict[str, Any]:
    """A pair's record as a line."""
    effort = record["spec"]["sides"]["b"].get("own_effort")
    code = record["code"]
    guarded = rulings(record)
    line = {
        "date": record["created"][:10],
        "commit": code["commit"][:8] + (" and changes" if code["dirty"] else ""),
        "condition": condition,
        "kind": f"control-{record['spec']['workload']['name']}" if effort is None else f"planted-{effort}",
        "pair": record["key"],
        "servers": len(record["rounds"]),
        "valid": record["valid"],
        "others_percent": f"{record['contention']['others_pct']:.0f}",
        "guard": " ".join(name for name, ruling in guarded.items() if ruling is guard.Ruling.REGRESSED),
    }
    for name in QUANTITIES:
        of = record["quantities"][name]
        second = of.get("started_second") or {"value": None, "low": None, "high": None}
        beside = [half_width_percent(of[kind]) if kind in of else None for kind in ("unadjusted", "unpaired")]
        values = (of["value"], of["low"], of["high"], *beside, in_rounds(record, name), *second.values())
        for part, value in zip(OF_QUANTITY, values, strict=True):
            line[f"{name}_{part}"] = "" if value is None else f"{value:.4f}"
    return line


def rulings(record: Mapping[str, Any]) -> dict[str, guard.Ruling]:
    """What a guard of this pair alone says of each quantity that it tells of."""
    names, rule = [name for name in guard.DEFAULT if guard._tells(record, name)], Rule()
    verdicts = judge_all([guard._evidence(record, name) for name in names], rule)
    return {
        name: guard.ruling_of(verdict, guard.QUANTITIES[name], rule)
        for name, verdict in zip(names, verdicts, strict=True)
    }


@contextmanager
def background(wanted: bool) -> Iterator[None]:
    """Two seconds of work in every three, by a process beside, while the block runs."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(os.getpid(),), daemon=True)
    if wanted:
        process.start()
    try:
        yield
    finally:
        if wanted:
            process.terminate()
            process.join()


def work(parent: int) -> None:
    while os.getppid() == parent:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            sum(range(1000))
        time.sleep(1)


def of(line: Mapping[str, str], name: str, part: str) -> float:
    """A number of a line; NaN where it has none."""
    return float(line[f"{name}_{part}"] or "nan")


def holds_one(line: Mapping[str, str], name: str) -> bool:
    return of(line, name, "low") <= 1 <= of(line, name, "high")


def half_width(line: Mapping[str, str], name: str) -> float:
    return 100 * (of(line, name, "high") / of(line, name, "ratio") - 1)


def tells(known: Sequence[Mapping[str, str]], name: str) -> list[str]:
    """Of one quantity: A/A that hold 1; by planted effort those found, and its ratio; the median half-widths."""
    controls = [line for line in known if line["kind"].startswith("control")]
    cells = [f"{sum(holds_one(line, name) for line in controls)} of {len(controls)}"]
    for effort in EFFORTS:
        planted = [line for line in known if line["kind"] == f"planted-{effort}"]
        found = sum(not holds_one(line, name) for line in planted)
        whole = math.exp(statistics.mean(math.log(of(line, name, "ratio")) for line in planted))
        cells += [f"{found} of {len(planted)}", f"{whole:.3f}"]
    cells.append(f"{statistics.median(half_width(line, name) for line in known):.1f}")
    for part in BESIDE:
        widths = [width for line in known if not math.isnan(width := of(line, name, part))]
        cells.append(f"{statistics.median(widths):.1f}" if widths else "–")
    return cells


def report(condition: str, known: Sequence[Mapping[str, str]]) -> list[str]:
    """The figures of one condition, as lines of a table in Markdown."""
    here = [line for line in known if line["condition"] == condition]
    if not here:
        return [f"{condition}: nothing measured"]
    others = statistics.median(float(line["others_percent"]) for line in here)
    servers = "/".join(sorted({line["servers"] for line in here}))
    invalid = sum(line["valid"] != "True" for line in here)
    planted = [f"{label}" for effort in EFFORTS for label in (f"ef {effort} found", "ratio")]
    said = [
        f"{condition.capitalize()}: {len(here)} comparisons of {servers} pairs of servers each, {invalid} invalid;"
        f" others used {others:.0f} % of a core (median). Half-widths (± %) are medians.",
        "",
        f"| quantity | A/A hold 1 | {' | '.join(planted)} | ± %, pairs | ± %, {' | ± %, '.join(BESIDE.values())} |",
        "| --- |" + " ---: |" * (6 + len(BESIDE)),
    ]
    said += [f"| {label} | {' | '.join(tells(here, name))} |" for name, label in QUANTITIES.items()]
    second = [of(line, "server_cpu_us_per_query", "second") for line in here]
    apart = sum(of(line, "server_cpu_us_per_query", "second_high") < 1 for line in here)
    alarms = [
        f"{sum(bool(line['guard']) for line in of_kind)} of {len(of_kind)} {name}"
        for name, kind in (("A/A", "control"), *((f"with ef {effort}", f"planted-{effort}") for effort in EFFORTS))
        for of_kind in [[line for line in here if line["kind"].startswith(kind)]]
    ]
    return [
        *said,
        "",
        f"`anncestry guard` with its defaults would call these regressed: {', '.join(alarms)}. The server that was"
        f" started second needed {statistics.median(second):.3f} times the CPU a query of the first (median;"
        f" surely less in {apart} of {len(here)}).",
    ]


def section(known: Sequence[Mapping[str, str]]) -> str:
    """The last section of docs/duet.md."""
    tables = "\n\n".join("\n".join(report(condition, known)) for condition in CONDITIONS)
    marker = f"<!-- measured: {LINES.path.relative_to(ROOT)} -->\n\n"
    tables = marker + tables.replace("\n\n", f"\n\n{marker}")
    return f"""{HEADING}
<!-- not measured: goals -->

`make bench-duet` measures what pairs tell, quiet and under a load of its own, and adds a line a comparison to
[duet.csv](duet.csv); this section is written from it. Weaviate 1.27.0 on Fashion-MNIST is compared with itself under
three workloads (A/A), and with itself at a higher search effort (planted differences; their ratio is that of all
comparisons together). The same slices give three other half-widths: *unadjusted*, without the correction for other
programs; *unpaired*, with the blocks of both sides unpaired; *rounds*, with each pair of servers as one round of each
side. The comparisons of a
turn share its servers. The {GOALS}.

{tables}
"""


def in_rounds(record: Mapping[str, Any], name: str) -> float | None:
    """The half-width that rounds would have: one value of each side from each pair of servers, taken unpaired."""
    each = record["quantities"][name].get("servers")
    if not each or "a" not in each[0]:
        return None
    samples = []
    for side in ("a", "b"):
        values = [one[side] for one in each]
        samples.append(Sample(statistics.mean(values), statistics.stdev(values), len(values)))
    found = judge_pair(*samples)
    return None if found is None else 100 * found


def judge_pair(a: Sample, b: Sample) -> float | None:
    verdict = judge(*Pair(a, b)[:2])
    return None if verdict.high is None else (verdict.high / a.mean + 1) / (b.mean / a.mean) - 1


if __name__ == "__main__":
    given = sys.argv[1:]
    asked = given[1:2] or CONDITIONS
    main(int(given[0]) if given else 1, asked, ROOT / "scratch" / "bench-duet")
