"""What pairs tell, on this machine: A/A comparisons, planted differences, and rounds in the same time.

python tests/bench/duet.py [COMPARISONS] [FOLDER]       (default: 3, scratch/bench-duet)

Weaviate 1.27.0 on random-xs-20 is paired with itself (two builds: their intervals should hold 1, but for 5 in 100), and
at ef 200 with itself at 220, which takes some 5 % more processor time and answers some 10 % less with four clients.
Each comparison has fresh pairs of servers, as many as its rule asks for. The first half of the comparisons runs quiet,
the second under a background load that this makes: one process that keeps a core busy for two seconds of every three.
COMPARISONS is how many of each kind and condition; FOLDER keeps what was measured, so that more can be added later.
Beside it stands what the slices would say unpaired, and what rounds say in the same time: each pair of servers as a
round of each side, minutes apart from the next.
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

SYSTEM, WORKLOAD = "weaviate-1.27.0", "k10-clients4"
EFFORT = 220
CONDITIONS = ("quiet", "busy")


def main(comparisons: int, folder: Path) -> None:
    for condition in CONDITIONS:
        for number in range(1, comparisons + 1):
            # A seed of its own gives each comparison keys, orders and servers of its own; the loads are shared.
            if not found(folder, condition, number):
                measure(folder, condition, number)
    for condition in CONDITIONS:
        report(condition, [found(folder, condition, number) for number in range(1, comparisons + 1)])


def config_of(folder: Path, number: int) -> Path:
    """A copy of the config, with an experiment of an A/A pair and a planted one, and pairs of this number."""
    target = folder / "config"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "config", target)
    epochs = yaml.safe_load((target / "epochs.yaml").read_text())
    epochs["pair"]["epoch"] = 1000 + number
    (target / "epochs.yaml").write_text(yaml.safe_dump(epochs))
    block: dict[str, Any] = {
        "datasets": ["random-xs-20-angular"],
        "topologies": ["standalone"],
        "workloads": [WORKLOAD],
    }
    planted = {**block, "paired": [SYSTEM, {"system": SYSTEM, "effort": EFFORT}]}
    experiment = {"title": "Pairs", "matrix": [planted], "rounds": {"minutes": 30}}
    (target / "experiments" / "pairs.yaml").write_text(yaml.safe_dump(experiment))
    return target


def measure(folder: Path, condition: str, number: int) -> None:
    """One A/A comparison and one planted one (the control and the pair of one block)."""
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
            is_planted = "own_effort" in body["spec"]["sides"]["b"]
            shutil.copyfile(record, kept / ("planted.json" if is_planted else "control.json"))


def found(folder: Path, condition: str, number: int) -> dict[str, Any]:
    """What was measured; empty if nothing was."""
    kept = folder / "kept" / f"{condition}-{number}"
    files = {kind: kept / f"{kind}.json" for kind in ("control", "planted")}
    if not all(file.exists() for file in files.values()):
        return {}
    return {kind: json.loads(file.read_text()) for kind, file in files.items()}


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


def report(condition: str, comparisons: list[dict[str, Any]]) -> None:
    """The figures of one condition: each quantity's A/A intervals, planted differences, and widths."""
    known = [each for each in comparisons if each]
    print(f"\n{condition}: {len(known)} A/A and {len(known)} planted comparisons")
    if not known:
        return
    others = statistics.median(each["control"]["contention"]["others_pct"] for each in known)
    servers = [len(each[kind]["rounds"]) for each in known for kind in ("control", "planted")]
    print(f"  others used {others:.0f} % of a core; {statistics.median(servers):g} pairs of servers (median)")
    print(
        f"  {'':26}{'A/A holds 1':>12}{'ef 220 found':>14}{'ratio':>8}{'± pairs':>9}{'± unpaired':>12}{'± rounds':>10}"
    )
    for name in ("qps", "server_cpu_us_per_query", "p50_ms", "p99_ms"):
        controls = [each["control"]["quantities"][name] for each in known]
        planted = [each["planted"]["quantities"][name] for each in known]
        holds = sum(one["low"] <= 1 <= one["high"] for one in controls)
        seen = sum(not one["low"] <= 1 <= one["high"] for one in planted)
        ratio = statistics.median(one["value"] for one in planted)
        widths = [half_width(one) for one in (*controls, *planted)]
        apart = [half_width(one["unpaired"]) for one in (*controls, *planted) if "unpaired" in one]
        rounds = [in_rounds(each[kind], name) for each in known for kind in ("control", "planted")]
        shown = [w for w in rounds if w is not None]
        print(
            f"  {name:26}{f'{holds} of {len(known)}':>12}{f'{seen} of {len(known)}':>14}{ratio:8.3f}"
            f"{statistics.median(widths):8.1f}%{statistics.median(apart) if apart else math.nan:11.1f}%"
            f"{statistics.median(shown) if shown else math.nan:9.1f}%"
        )


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
    main(int(given[0]) if given else 3, Path(given[1] if len(given) > 1 else "scratch/bench-duet"))
