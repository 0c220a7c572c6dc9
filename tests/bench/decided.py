"""What the results of an experiment decide: minutes, rounds, widths of intervals, and comparisons that are determined.

python tests/bench/decided.py [FOLDER] [EXPERIMENT]      (default: this folder, default)

FOLDER is a working directory with results/ of any epoch; its newest table of the experiment says which records count.
Minutes run from the first load's start to the table. Compared are the two systems of each dataset, topology and
workload by p50, p99 and QPS, all together (`metrics.decide`), so that results of two versions are judged alike.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from anncestry.metrics.decide import Outcome, Pair, Sample, judge_all  # noqa: E402

METRICS = ("p50_ms", "p99_ms", "qps")


def main(folder: Path, experiment: str) -> None:
    tables = sorted(
        (folder / "results/table").glob(f"{experiment}@*/record.json"), key=lambda path: path.stat().st_mtime
    )
    if not tables:
        sys.exit(f"{folder}: has no table of experiment {experiment}: run `make all` there first")
    table = json.loads(tables[-1].read_text())
    shown = [json.loads((folder / path).read_text()) for path in table["records"] if (folder / path).exists()]
    loads = [record for record in shown if record["stage"] == "load"]
    queries = [record for record in shown if record["stage"] == "query" and record["valid"]]
    start = min(_seconds(record) - record["server"].get("up_s", 0.0) for record in loads)
    print(f"{(_seconds(table) - start) / 60:.1f} minutes from the first load to the table")
    rounds = Counter(len(record["rounds"]) for record in queries)
    print("rounds: " + ", ".join(f"{count} cells of {number}" for number, count in sorted(rounds.items())))
    for metric in METRICS:
        found = [record["summary"][metric] for record in queries]
        widths = [50 * (one["high"] - one["low"]) / one["value"] for one in found if one.get("low") is not None]
        if widths:
            print(f"{metric}: median interval ±{statistics.median(widths):.1f} % of {len(widths)} cells")
    verdicts = judge_all(list(_pairs(queries)))
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    determined = sum(count for outcome, count in outcomes.items() if outcome is not Outcome.UNDETERMINED)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{determined} of {len(verdicts)} comparisons determined ({said})")


def _seconds(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["created"]).timestamp()


def _pairs(queries: list[dict[str, Any]]) -> list[Pair]:
    places: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in queries:
        axes = ("dataset", "topology", "workload")
        places.setdefault(tuple(record["spec"][axis]["name"] for axis in axes), []).append(record)
    return [
        Pair(_sample(a, metric, rounds), _sample(b, metric, rounds), metric, paired=True)
        for of_place in places.values()
        for a, b in combinations(of_place, 2)
        for rounds in [min(len(a["rounds"]), len(b["rounds"]))]
        for metric in METRICS
    ]


def _sample(record: dict[str, Any], metric: str, rounds: int) -> Sample:
    """The rounds that both sides have, which are pairs."""
    values = record["summary"][metric]["runs"][:rounds]
    return Sample(statistics.mean(values), statistics.stdev(values), len(values), tuple(values))


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "."), sys.argv[2] if sys.argv[2:] else "default")
