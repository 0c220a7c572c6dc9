"""What pairs tell, on this machine: A/A comparisons, planted differences, and rounds in the same time.

python tests/bench/duet.py [TURNS] [FOLDER]       (default: 2, scratch/bench-duet)

Weaviate 1.27.0 on Fashion-MNIST is paired with itself, under three workloads (A/A: their intervals should hold 1, but
for 5 in 100), and with itself at a higher search effort, which costs some 5 % more processor time (ef 215), or gives
some 10 % fewer answers (ef 230), with four clients: planted differences; their true size is that of all together.
A turn has 8 fresh pairs of servers, of which a comparison alone would take less than 5 minutes. Every second turn is
under a background load that this makes (a process that keeps a core busy for two seconds of every three). FOLDER keeps
what was measured, so that more can be added later.
Beside it stands what the slices would say unpaired, and what rounds say in the same time: each pair of servers as a
round of each side.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from anncestry.metrics.decide import Pair, Sample, judge  # noqa: E402

SYSTEM, DATASET = "weaviate-1.27.0", "fashion-mnist-784-euclidean"
CONTROLS = ("k10-clients2", "k10-clients4", "k10-clients8")
PLANTED, EFFORTS = "k10-clients4", (215, 230)
SERVERS = 8
"""Pairs of servers a comparison: one workload takes some 35 s on each, 4 min 40 s together."""
CONDITIONS = ("quiet", "busy")
GOALS = "goals: 28 of 30 A/A hold 1, 9 of 10 planted found, ± 6 % of QPS and 3 % of processor time a query"


def main(turns: int, folder: Path) -> None:
    for number in range(1, turns + 1):
        for condition in CONDITIONS:
            # An epoch of its own gives each turn keys, orders and servers of its own; the loads are shared.
            if not found(folder, condition, number):
                measure(folder, condition, number)
                print(f"{condition} {number} measured", file=sys.stderr, flush=True)
    for condition in CONDITIONS:
        report(condition, [found(folder, condition, number) for number in range(1, turns + 1)])
    print(f"\n{GOALS}")


def config_of(folder: Path, number: int) -> Path:
    """A copy of the config, with an experiment of A/A pairs and planted ones, and pairs of this number."""
    target = folder / "config"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "config", target)
    epochs = yaml.safe_load((target / "epochs.yaml").read_text())
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


def measure(folder: Path, condition: str, number: int) -> None:
    """One turn: each A/A comparison and each planted one."""
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
    kept = place / "kept" / f"{condition}-{number}"
    kept.mkdir(parents=True, exist_ok=True)
    for record in (place / "results" / "pair").rglob("*.json"):
        body = json.loads(record.read_text())
        if body["spec"]["epoch"] == 1000 + at:
            effort = body["spec"]["sides"]["b"].get("own_effort")
            name = f"control-{body['spec']['workload']['name']}" if effort is None else f"planted-{effort}"
            shutil.copyfile(record, kept / f"{name}.json")


def found(folder: Path, condition: str, number: int) -> dict[str, dict[str, Any]]:
    """The records of a turn by kind; empty if it wasn't measured to its end."""
    kept = folder / "kept" / f"{condition}-{number}"
    read = {path.stem: json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))}
    return read if len(read) == len(CONTROLS) + len(EFFORTS) else {}


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


def report(condition: str, turns: list[dict[str, dict[str, Any]]]) -> None:
    """The figures of one condition: each quantity's A/A intervals, planted differences, and widths."""
    records = [(kind, record) for turn in turns for kind, record in turn.items()]
    controls = [record for kind, record in records if kind.startswith("control")]
    print(f"\n{condition}: {len(controls)} A/A and {len(records) - len(controls)} planted comparisons")
    if not records:
        return
    others = statistics.median(record["contention"]["others_pct"] for _, record in records)
    servers = [len(record["rounds"]) for _, record in records]
    print(f"  others used {others:.0f} % of a core; {statistics.median(servers):g} pairs of servers (median)")
    invalid = sum(not record["valid"] for _, record in records)
    print(f"  {invalid} are invalid")
    planted = "".join(f"{f'ef {effort} found':>16}{'ratio':>8}" for effort in EFFORTS)
    print(f"  {'':24}{'A/A holds 1':>12}{planted}{'± pairs':>9}{'± unpaired':>12}{'± rounds':>10}")
    for name in ("qps", "server_cpu_us_per_query", "p50_ms", "p99_ms"):
        ratios = [record["quantities"][name] for record in controls]
        line = f"  {name:24}{f'{sum(map(holds_one, ratios))} of {len(ratios)}':>12}"
        for effort in EFFORTS:
            ratios = [record["quantities"][name] for kind, record in records if kind == f"planted-{effort}"]
            seen = sum(not holds_one(ratio) for ratio in ratios)
            whole = math.exp(statistics.mean(math.log(ratio["value"]) for ratio in ratios))
            line += f"{f'{seen} of {len(ratios)}':>16}{whole:8.3f}"
        every = [record["quantities"][name] for _, record in records]
        apart = [half_width(ratio["unpaired"]) for ratio in every if "unpaired" in ratio]
        rounds = [width for _, record in records if (width := in_rounds(record, name)) is not None]
        line += f"{statistics.median(map(half_width, every)):8.1f}%"
        for widths, place in ((apart, 11), (rounds, 9)):
            line += f"{statistics.median(widths):{place}.1f}%" if widths else f"{'–':>{place + 1}}"
        print(line)


def holds_one(ratio: dict[str, Any]) -> bool:
    return bool(ratio["low"] <= 1 <= ratio["high"])


def half_width(ratio: dict[str, Any]) -> float:
    return float(100 * (ratio["high"] / ratio["value"] - 1))


def in_rounds(record: dict[str, Any], name: str) -> float | None:
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
    main(int(given[0]) if given else 2, Path(given[1] if len(given) > 1 else "scratch/bench-duet"))
