"""What the results of an experiment decide: minutes, rounds, widths of intervals, and comparisons that are determined.

python tests/bench/decided.py [FOLDER] [EXPERIMENT]      (default: this folder, default)

FOLDER is a working directory with results/ of any epoch; its newest table of the experiment says which records count.
Minutes run from the first load's start to the table; those of loads, rounds and pairs are by the ledgers of attempts.
Compared are the two systems of each dataset, topology and workload by p50, p99 and QPS, all together
(`metrics.decide`), so that results of two versions are judged alike: by their rounds alone, and by their pairs of
servers where there are some, as a page does. At last, what the machine's own speed, seen in what the clients' work
cost, explains of the differences between rounds.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from anncestry.metrics.decide import Outcome, Pair, Sample, judge_all  # noqa: E402
from anncestry.report.model.noise import speed_percent  # noqa: E402
from anncestry.report.model.verdicts import Paired  # noqa: E402

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
    spent = ", ".join(f"{name} {minutes:.1f}" for name, minutes in _spent(folder, start).items())
    print(f"of these, minutes of {spent}")
    rounds = Counter(len(record["rounds"]) for record in queries)
    print("rounds: " + ", ".join(f"{count} cells of {number}" for number, count in sorted(rounds.items())))
    for metric in METRICS:
        found = [record["summary"][metric] for record in queries]
        widths = [50 * (one["high"] - one["low"]) / one["value"] for one in found if one.get("low") is not None]
        if widths:
            print(f"{metric}: median interval ±{statistics.median(widths):.1f} % of {len(widths)} cells")
    paired = Paired(shown)
    pairs = list(_pairs(queries, paired))
    _say("rounds alone", [pair._replace(ratio=None) for pair in pairs])
    if any(pair.ratio is not None for pair in pairs):
        _say("rounds, and pairs of servers where there are some", pairs, paired.beside(METRICS))
    _explained(queries)


def _spent(folder: Path, since: float) -> dict[str, float]:
    """Minutes of the attempts that began after `since` (s), by what they were."""
    stages = {"load": "loads", "session": "rounds", "duet": "pairs"}
    spent = dict.fromkeys(stages.values(), 0.0)
    for ledger in (folder / "results/attempts").rglob("*.jsonl"):
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        began, ended = (datetime.fromisoformat(lines[at]["at"]).timestamp() for at in (0, -1))
        if lines[0].get("stage") in stages and began > since - 60:
            spent[stages[lines[0]["stage"]]] += (ended - began) / 60
    return spent


def _say(by: str, pairs: list[Pair], beside: Sequence[Pair] = ()) -> None:
    verdicts = judge_all(pairs, beside=beside)
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    determined = sum(count for outcome, count in outcomes.items() if outcome is not Outcome.UNDETERMINED)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"by {by}: {determined} of {len(verdicts)} comparisons determined ({said})")


def _explained(queries: list[dict[str, Any]]) -> None:
    """What a query cost the clients beside the QPS of the same round: logarithms, each less the mean of its cell."""
    costs, rates = [], []
    for record in queries:
        cost = [one.get("cpu_us_per_query") for one in record["rounds"]]
        rate = record["summary"]["qps"]["runs"]
        if len(rate) > 1 and len(cost) == len(rate) and all(cost) and all(rate):
            for values, found in ((cost, costs), (rate, rates)):
                middle = statistics.fmean(map(math.log, values))
                found += [math.log(value) - middle for value in values]
    if len(rates) > 2:
        together = statistics.correlation(costs, rates)
        differ = math.sqrt(statistics.fmean(rate**2 for rate in rates))
        left = differ * math.sqrt(1 - together**2)
        speed = speed_percent(queries) or 0.0
        print(
            f"{len(rates)} rounds: QPS differs from that of its cell by {100 * differ:.1f} %; correlation with the "
            f"clients' CPU a query {together:.2f}, which leaves {100 * left:.1f} %; "
            f"speed of the machine, round to round: ± {speed:.1f} %"
        )


def _seconds(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["created"]).timestamp()


def _pairs(queries: list[dict[str, Any]], paired: Paired) -> list[Pair]:
    places: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in queries:
        axes = ("dataset", "topology", "workload")
        places.setdefault(tuple(record["spec"][axis]["name"] for axis in axes), []).append(record)
    return [
        Pair(_sample(a, metric, rounds), _sample(b, metric, rounds), metric, paired=True, ratio=ratio)
        for place, of_place in places.items()
        for a, b in combinations(of_place, 2)
        for rounds in [min(len(a["rounds"]), len(b["rounds"]))]
        for metric in METRICS
        for ratio in [paired.ratio(place, *(one["spec"]["system"]["name"] for one in (a, b)), metric)]
    ]


def _sample(record: dict[str, Any], metric: str, rounds: int) -> Sample:
    """The rounds that both sides have, which are pairs."""
    values = record["summary"][metric]["runs"][:rounds]
    return Sample(statistics.mean(values), statistics.stdev(values), len(values), tuple(values))


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "."), sys.argv[2] if sys.argv[2:] else "default")
