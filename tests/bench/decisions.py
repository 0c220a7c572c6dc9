"""How often verdicts are wrong and how often they decide, and what intervals cover, in worlds where the truth is known.

python tests/bench/decisions.py [WORLDS]      (default: 1000, some minutes)

A world is one matrix: two systems under WORKLOADS workloads, `runs` rounds, by one quantity. Spreads between runs are
those of a kept default run (coefficients of variation from 3 to 56 %, median 13 %): each cell has its own; rounds drift
together; and a burst of another program's work takes from a run, now and then, up to half. Seeded. Goals: false alarms
of at most 5 % a world (Holm), and intervals that cover what they say in 93 to 97 of 100.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.metrics import decide  # noqa: E402
from anncestry.metrics.decide import Outcome, Pair, Sample, Share  # noqa: E402

WORLDS = 1000
WORKLOADS = 14
DRIFT, BURST_SHARE = 0.04, 0.06
GOAL = (93.0, 97.0)


def sample(values: np.ndarray) -> Sample:
    return Sample(float(values.mean()), float(values.std(ddof=1)), len(values), tuple(map(float, values)))


def speeds(random: np.random.RandomState, change: float, runs: int, median_cv: float) -> Iterator[Pair]:
    """Rates of both systems under every workload; B's are A's times 1 + change."""
    for _ in range(WORKLOADS):
        spread = min(0.4, median_cv * float(random.lognormal(0, 0.5)))
        level, drift = random.uniform(50, 5000), random.normal(0, DRIFT, runs)
        sides = []
        for factor in (1.0, 1 + change):
            own = random.normal(0, spread, runs)
            burst = (random.uniform(size=runs) < BURST_SHARE) * random.uniform(0.05, 0.5, runs)
            sides.append(sample(level * factor * np.exp(drift + own) * (1 - burst)))
        yield Pair(*sides, quantity="qps", paired=True)


def builds(random: np.random.RandomState, change: float, count: int, median_cv: float) -> Iterator[Pair]:
    """Sizes or load times of `count` builds a side: no rounds, so no pairs."""
    for pair in speeds(random, change, count, median_cv):
        yield pair._replace(paired=False, of="builds")


def recalls(random: np.random.RandomState, change: float, queries: int, loss: float) -> Iterator[Pair]:
    """Recalls@10 of the same queries, some hard for both; B loses `change` more of all neighbours."""
    for _ in range(WORKLOADS):
        hard = random.beta(0.3, 0.3 / loss, queries)
        first, second = (
            random.binomial(10, 1 - np.minimum(hard * (1 + extra / loss), 1)) / 10 for extra in (0, change)
        )
        yield Pair(*(Share(float(s.mean()), queries, dict(enumerate(s.tolist()))) for s in (first, second)))


def verdicts(make: Callable[[np.random.RandomState], Iterator[Pair]], worlds: int) -> tuple[Counter[str], float, float]:
    """Verdicts in percent of comparisons; in how many percent of worlds one says "differs"; what intervals cover."""
    said: Counter[str] = Counter()
    alarmed = 0
    for seed in range(worlds):
        found = decide.judge_all(list(make(np.random.RandomState(seed))))
        said.update("differs" if verdict.decided else verdict.outcome.value for verdict in found)
        alarmed += any(verdict.decided for verdict in found)
    whole = sum(said.values())
    return Counter({name: 100 * count / whole for name, count in said.items()}), 100 * alarmed / worlds, whole


def power(worlds: int) -> None:
    kinds = {
        "speed, 3 rounds, CV 13 %": lambda change: lambda random: speeds(random, change, 3, 0.11),
        "speed, 8 rounds, CV 13 %": lambda change: lambda random: speeds(random, change, 8, 0.11),
        "CPU a query, 3 rounds, CV 2 %": lambda change: lambda random: speeds(random, change, 3, 0.02),
        "builds, 3 a side, CV 4 %": lambda change: lambda random: builds(random, change, 3, 0.04),
    }
    head = " ".join(f"{name:>9}" for name in ("differs", "equival.", "undeterm."))
    print(f"{'verdicts, in % of comparisons':34} {'planted':>8} {head} {'worlds with an alarm':>21}")
    for name, kind in kinds.items():
        for change in (0.0, 0.02, 0.05, 0.1, 0.2):
            said, alarmed, _ = verdicts(kind(change), worlds)
            print(_line(name, f"{100 * change:.0f} %", said, alarmed if not change else None))
    for change in (0.0, 0.002, 0.005, 0.014):
        said, alarmed, _ = verdicts(lambda random, c=change: recalls(random, c, 1000, 0.02), worlds // 2)
        print(_line("recall, 1,000 queries, about .98", f"{change:.3f}", said, alarmed if not change else None))


def _line(name: str, planted: str, said: Counter[str], alarmed: float | None) -> str:
    shares = " ".join(f"{said[o]:9.1f}" for o in ("differs", Outcome.EQUIVALENT.value, Outcome.UNDETERMINED.value))
    return f"{name:34} {planted:>8} {shares}  {'' if alarmed is None else f'{alarmed:20.1f}'}"


if __name__ == "__main__":
    power(int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS)
