"""How often verdicts are wrong and how often they decide, and what intervals cover, in worlds where the truth is known.

python tests/bench/decisions.py [WORLDS]      (default: 1000, some minutes; exit 1 if a goal is missed)

A world is one matrix: two systems under WORKLOADS workloads, `runs` rounds, by one quantity. Spreads between runs are
those of kept default runs: of rates on a noisy machine (coefficients of variation from 3 to 56 %, median 13 %), of
CPU a query on a quiet one (1 to 17 %, median 7 %, none further from its cell's median than 27 %). Each cell
has its own; rounds drift together; and a burst of another program's work takes from a run, now and then, up to half of
its rate. See `BURST_OF` for how much of that reaches other quantities. Seeded. Goals: false alarms of at most 5 % a
world (Holm), and intervals that cover what they say in 93 to 97 of 100 (both but for what so many worlds leave open,
three standard errors).

Coverage is of every kind of interval that pages and comparisons print, by the functions that print them. Of samples, a
query has an effect of its own in all runs, a run and each answer theirs, and slow spells make latencies some 3 times as
long. The sizes of all four are fitted to the samples of a kept default run (`RUN_SD` and what follows); the truth is
that of 800 other runs. The intervals of one run are of its own queries; pages don't print them.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.metrics import decide, duet, rounds, stats  # noqa: E402
from anncestry.metrics.decide import Outcome, Pair, Sample, Share, Verdict  # noqa: E402
from anncestry.metrics.latency import Run, of_run, summarise  # noqa: E402

WORLDS = 1000
WORKLOADS = 14
SYSTEMS, NUMBERS = 15, 5
PAIRED, CONTROLS = 4, 2
"""Comparisons in pairs of servers, and controls, of the default matrix."""
SERVER_SD = 0.025
"""What a log ratio of QPS differs by from one pair of servers to the next (docs/duet.csv: 0.019 quiet, 0.028 busy)."""
DRIFT, BURST_SHARE = 0.04, 0.06
BURST_OF = {"rate": 1.0, "cpu": 0.25, "build": 1.0}
"""How much of a burst that takes from a rate reaches other quantities. CPU a query rises by some 13 % where
others use a core of two, which halves the rate (docs/duet.csv: what others make of ratios)."""
RUNS_OF = {"rate": 1, "cpu": 1, "build": 10}
"""How many times as long as a run what is measured lasts: a load meets more bursts, each of which takes less of it."""
GOAL = (93.0, 97.0)
# Of 106 runs of cells with one client (logarithms; medians, of spells also their spread): what runs, queries and single
# answers add, how many ms apart slow spells are, how long one is, and how many times as long answers take in it.
RUN_SD, QUERY_SD, ANSWER_SD = 0.144, 0.109, 0.120
SPELL_EVERY_MS, SPELL_MS, SPELL_SD, SLOWER, SLOWER_SD = 128.0, 7.6, 0.7, 2.8, 0.35


def sample(values: np.ndarray) -> Sample:
    return Sample(float(values.mean()), float(values.std(ddof=1)), len(values), tuple(map(float, values)))


def speeds(
    random: np.random.RandomState, change: float, runs: int, median_cv: float, of: str = "rate"
) -> Iterator[Pair]:
    """Rates (or what `BURST_OF` names) of both systems under every workload; B's are A's times 1 + change."""
    for _ in range(WORKLOADS):
        spread = min(0.4, median_cv * float(random.lognormal(0, 0.5)))
        # Builds are of no rounds that would drift together.
        level, drift = random.uniform(50, 5000), random.normal(0, 0 if of == "build" else DRIFT, runs)
        sides = []
        for factor in (1.0, 1 + change):
            own = random.normal(0, spread, runs)
            burst = bursts(random, runs * RUNS_OF[of]).reshape(runs, -1).mean(axis=1) * BURST_OF[of]
            sides.append(sample(level * factor * np.exp(drift + own) * (1 - burst)))
        yield Pair(*sides, quantity="qps", paired=True)


def bursts(random: np.random.RandomState, runs: int) -> np.ndarray:
    """What share of each run's rate other programs take."""
    return (random.uniform(size=runs) < BURST_SHARE) * random.uniform(0.05, 0.5, runs)


def of_many(random: np.random.RandomState, change: float, runs: int, median_cv: float) -> Iterator[Pair]:
    """Rates of SYSTEMS under NUMBERS workloads, each against each; each is faster than the one before by `change`."""
    for _ in range(NUMBERS):
        drift, level = random.normal(0, DRIFT, runs), random.uniform(50, 5000)
        sides = []
        for place in range(SYSTEMS):
            spread = min(0.4, median_cv * float(random.lognormal(0, 0.5)))
            own = random.normal(0, spread, runs)
            rates = level * (1 + change) ** place * np.exp(drift + own) * (1 - bursts(random, runs))
            sides.append(sample(rates))
        yield from (Pair(a, b, quantity="qps", paired=True) for a, b in combinations(sides, 2))


def builds(random: np.random.RandomState, change: float, count: int, median_cv: float) -> Iterator[Pair]:
    """Sizes or load times of `count` builds a side: no rounds, so no pairs."""
    for pair in speeds(random, change, count, median_cv, "build"):
        yield pair._replace(paired=False, of="builds")


def ratios(random: np.random.RandomState, change: float, servers: int) -> Iterator[Pair]:
    """Ratios of two systems over `servers` fresh pairs of servers, PAIRED of them and CONTROLS of one with itself.

    The second server of a pair is faster; a pair's own noise is that of the median comparison of docs/duet.csv.
    """
    for number in range(PAIRED + CONTROLS):
        noise, second = SERVER_SD * float(random.lognormal(0, 0.5)), random.uniform(-0.06, 0.06)
        true = math.log1p(change) if number < PAIRED else 0.0
        of_order = [-second if duet.first_started(each) else second for each in range(servers)]
        logs = true + np.array(of_order) + random.normal(0, noise, servers)
        ratio = duet.over_servers([duet.exact(float(log)) for log in logs])
        yield Pair(Sample(1.0, 0.0, 1), Sample(1.0, 0.0, 1), "qps", ratio=ratio)


def recalls(random: np.random.RandomState, change: float, queries: int, loss: float) -> Iterator[Pair]:
    """Recalls@10 of the same queries, some hard for both; B loses `change` more of all neighbours."""
    for _ in range(WORKLOADS):
        hard = random.beta(0.3, 0.3 / loss, queries)
        first, second = (
            random.binomial(10, 1 - np.minimum(hard * (1 + extra / loss), 1)) / 10 for extra in (0, change)
        )
        yield Pair(*(Share(float(s.mean()), queries, dict(enumerate(s.tolist()))) for s in (first, second)))


def judged(pairs: list[Pair]) -> list[Verdict]:
    """As a page judges: controls of systems in pairs are beside what is judged."""
    many = PAIRED if pairs[0].ratio else len(pairs)
    return decide.judge_all(pairs[:many], beside=pairs[many:])


def verdicts(make: Callable[[np.random.RandomState], Iterator[Pair]], worlds: int) -> tuple[Counter[str], float]:
    """Verdicts in percent of comparisons; in how many percent of worlds one says "differs"."""
    said: Counter[str] = Counter()
    alarmed = 0
    for seed in range(worlds):
        found = judged(list(make(np.random.RandomState(seed))))
        said.update("differs" if verdict.decided else verdict.outcome.value for verdict in found)
        alarmed += any(verdict.decided for verdict in found)
    whole = sum(said.values())
    return Counter({name: 100 * count / whole for name, count in said.items()}), 100 * alarmed / worlds


def alarms_missed(alarmed: float, worlds: int) -> bool:
    return alarmed > 5 + 3 * 100 * (0.05 * 0.95 / worlds) ** 0.5


Made = Callable[[np.random.RandomState], Iterator[Pair]]
"""A world's comparisons."""


def kinds(worlds: int) -> Iterator[tuple[str, str, bool, int, Made]]:
    """Kinds of comparisons: name, what is planted, whether that is nothing, in how many worlds, how they are made."""
    two: dict[str, Callable[[np.random.RandomState, float], Iterator[Pair]]] = {
        "speed, 3 rounds, CV 13 %": lambda random, change: speeds(random, change, 3, 0.11),
        "speed, 8 rounds, CV 13 %": lambda random, change: speeds(random, change, 8, 0.11),
        "CPU a query, 3 rounds, CV 7 %": lambda random, change: speeds(random, change, 3, 0.06, "cpu"),
        "builds, 3 a side, CV 4 %": lambda random, change: builds(random, change, 3, 0.04),
        "speed in 4 pairs of servers": lambda random, change: ratios(random, change, 4),
    }
    for name, kind in two.items():
        for change in (0.0, 0.02, 0.05, 0.1, 0.2):
            yield name, f"{100 * change:.0f} %", not change, worlds, partial(kind, change=change)
    for runs in (2, 3):
        for change in (0.0, 0.1, 0.5):
            name = f"{SYSTEMS} systems, speed, {runs} rounds, CV 13 %"
            made = partial(of_many, change=change, runs=runs, median_cv=0.11)
            yield name, f"{100 * change:.0f} % each", not change, worlds // 5, made
    for change in (0.0, 0.002, 0.005, 0.014):
        made = partial(recalls, change=change, queries=1000, loss=0.02)
        yield "recall, 1,000 queries, about .98", f"{change:.3f}", not change, worlds // 2, made


def power(worlds: int) -> bool:
    """Print verdicts by kind and planted difference; returns whether false alarms are too many."""
    missed = False
    head = " ".join(f"{name:>9}" for name in ("differs", "equival.", "undeterm."))
    print(f"{'verdicts, in % of comparisons':40} {'planted':>10} {head} {'worlds with an alarm':>21}")
    asked = list(kinds(worlds))
    done = in_parallel([partial(verdicts, made, some) for *_, some, made in asked])
    for (name, planted, nothing, some, _), (said, alarmed) in zip(asked, done, strict=True):
        missed |= nothing and alarms_missed(alarmed, some)
        print(_line(name, planted, said, alarmed if nothing else None), flush=True)
    return missed


_TASKS: list[Callable[[], Any]] = []
"""Filled before workers are forked: they have them, too."""


def in_parallel(tasks: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """What each of these returns, in their order, on all cores."""
    _TASKS[:] = tasks
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        yield from pool.map(_task, range(len(tasks)))


def _task(number: int) -> Any:
    return _TASKS[number]()


def _line(name: str, planted: str, said: Counter[str], alarmed: float | None) -> str:
    shares = " ".join(f"{said[o]:9.1f}" for o in ("differs", Outcome.EQUIVALENT.value, Outcome.UNDETERMINED.value))
    return f"{name:40} {planted:>10} {shares}  {'' if alarmed is None else f'{alarmed:20.1f}'}"


# Coverage


def runs_of(random: np.random.RandomState, runs: int, queries: int, spread: float, hard: np.ndarray) -> list[Run]:
    """Closed loops of one client: `queries` once each, in an order of its own in each run."""
    made = []
    for _ in range(runs):
        order = random.permutation(queries)
        took_ms = 2.0 * np.exp(random.normal(0, spread) + hard[order] + random.normal(0, ANSWER_SD, queries))
        took_ms *= slower(random, took_ms)
        took_ns = (took_ms * 1e6).astype(np.int64)
        due_ns = np.concatenate([[0], np.cumsum(took_ns)[:-1]])
        status = np.zeros(queries, np.uint8)
        made.append(Run(due_ns=due_ns, latency_ns=took_ns, status=status, query=order.astype(np.uint32)))
    return made


def slower(random: np.random.RandomState, took_ms: np.ndarray) -> np.ndarray:
    """By how much spells make each answer slower; a spell goes on, by the clock, until its time is over."""
    factors, at_ms, ends_ms = np.ones(len(took_ms)), 0.0, random.exponential(SPELL_EVERY_MS)
    starts_ms = np.cumsum(took_ms) - took_ms
    while ends_ms < starts_ms[-1]:
        at_ms = ends_ms
        lasts_ms = SPELL_MS * random.lognormal(0, SPELL_SD)
        factor = SLOWER * random.lognormal(0, SLOWER_SD)
        # Answers that begin in it by the undisturbed clock, of which it covers a part only: it slows them.
        factors[(starts_ms >= at_ms) & (starts_ms < at_ms + lasts_ms / factor)] *= factor
        ends_ms = at_ms + lasts_ms / factor + random.exponential(SPELL_EVERY_MS)
    return factors


def of_cells(worlds: int, runs: int, spread: float) -> dict[str, tuple[int, int]]:
    """Of each number of a cell: in how many worlds its interval holds the truth, of how many that have one."""
    queries, found = 1000, Counter[str]()
    names = ("p50_ms", "p95_ms", "p99_ms", "mean_ms", "qps")
    have = Counter[str]()
    for seed in range(worlds):
        random = np.random.RandomState(seed)
        hard = random.normal(0, QUERY_SD, queries)
        summary = summarise(runs_of(random, runs, queries, spread, hard))
        truth = truth_of(spread, queries)
        for name in names:
            if summary[name]["low"] is not None:
                have[name] += 1
                found[name] += summary[name]["low"] <= truth[name] <= summary[name]["high"]
    return {f"{name} of a cell, {runs} runs": (found[name], have[name]) for name in names if have[name]}


@cache
def truth_of(spread: float, queries: int) -> dict[str, float]:
    """What the numbers of a cell estimate: the means over many runs of other queries."""
    random = np.random.RandomState(1_000_003)
    each = []
    for _ in range(800):
        (run,) = runs_of(random, 1, queries, spread, random.normal(0, QUERY_SD, queries))
        each.append(of_run(run))
    whole_s = sum(queries / one["qps"] for one in each)
    means = {name: float(np.mean([one[name] for one in each])) for name in ("p50_ms", "p95_ms", "p99_ms", "mean_ms")}
    return {**means, "qps": 800 * queries / whole_s}


def of_verdicts(
    make: Callable[[np.random.RandomState, float], Iterator[Pair]], change: float, worlds: int
) -> tuple[int, int]:
    """How many intervals of B - A hold what was planted, of how many."""
    held = whole = 0
    for seed in range(worlds):
        pairs = list(make(np.random.RandomState(seed), change))
        for pair, verdict in zip(pairs, judged(pairs), strict=False):
            if verdict.low is None or verdict.high is None:
                continue
            whole += 1
            planted = pair.a.mean * change if isinstance(pair.a, Sample) else -change
            held += verdict.low <= planted <= verdict.high
    return held, whole


def by_need(random: np.random.RandomState, change: float) -> Iterator[Pair]:
    """Rates of cells that were measured until their interval was narrow (±10 %), in 3 to 8 rounds."""
    rule = {"first": 3, "most": 8, "interval_percent": 10}
    for pair in speeds(random, change, 8, 0.11):
        sides = []
        for side in (pair.a, pair.b):
            count = 3
            while rounds.decide(side.values[:count], rule)["state"] == rounds.WIDE:
                count += 1
            sides.append(sample(np.array(side.values[:count])))
        yield pair._replace(a=sides[0], b=sides[1])


def failing(random: np.random.RandomState, change: float) -> Iterator[Pair]:
    """Shares of failed requests of different queries."""
    for _ in range(WORKLOADS):
        share = random.uniform(0.002, 0.1)
        a, b = (random.binomial(1000, p) / 1000 for p in (share, max(0.0, share - change)))
        yield Pair(Share(a, 1000), Share(b, 1000))


def of_wilson(worlds: int) -> tuple[int, int]:
    random, held = np.random.RandomState(1), 0
    for _ in range(20 * worlds):
        count, share = int(random.choice([200, 500, 1000])), float(random.uniform(0.005, 0.2))
        low, high = stats.wilson(random.binomial(count, share) / count, count)
        held += low <= share <= high
    return held, 20 * worlds


def of_servers(worlds: int, first: int, most: int, percent: float, planted: float = 0.05) -> tuple[int, int]:
    """Pairs of servers of 5 blocks, also biased by the order of starts, stopped at an interval of so many percent.

    Other programs take up to half a core more from one side than from the other in a block, in half of the worlds.
    """
    held = 0
    for seed in range(worlds):
        random = np.random.RandomState(seed)
        noise, start, second = random.uniform(0.03, 0.12), random.uniform(0, 0.03), random.uniform(-0.06, 0.06)
        slope, taken = random.uniform(-1.2, 0), random.uniform(0, 0.25) * random.randint(2)
        each: list[duet.Blocks] = []
        while len(each) < most:
            by_order = -second if duet.first_started(len(each)) else second
            others = random.normal(0, 0.02, 5) + random.normal(0, taken, 5)
            logs = planted + by_order + random.normal(0, start) + random.normal(0, noise, 5) + slope * others
            each.append(duet.Blocks(logs, others))
            if len(each) >= first and (duet.to_stop_percent(each) or 99) <= percent:
                break
        low, high = duet.over_servers(duet.adjusted(each, -1)[0]).bounds() or (2.0, 2.0)
        held += low <= np.exp(planted) <= high
    return held, worlds


def coverage(worlds: int) -> bool:
    """Print what each kind of interval covers; returns whether one is outside of its goal."""
    compared: dict[str, tuple[Callable[[np.random.RandomState, float], Iterator[Pair]], float, int]] = {
        "speeds, 3 rounds": (lambda r, c: speeds(r, c, 3, 0.11), 0.05, worlds),
        "speeds, rounds by need": (by_need, 0.05, worlds),
        "speeds in 4 pairs of servers": (lambda r, c: ratios(r, c, 4), 0.05, worlds),
        "CPU a query, 3 rounds": (lambda r, c: speeds(r, c, 3, 0.06, "cpu"), 0.05, worlds),
        "builds, 3 a side": (lambda r, c: builds(r, c, 3, 0.04), 0.05, worlds),
        "recalls, same queries": (lambda r, c: recalls(r, c, 1000, 0.02), 0.005, worlds // 2),
        "failing shares": (failing, 0.001, worlds // 2),
    }
    tasks: list[Callable[[], dict[str, tuple[int, int]]]] = [partial(of_cells, worlds, runs, RUN_SD) for runs in (3, 5)]
    tasks += [
        lambda name=name, asked=asked: {f"difference of {name}": of_verdicts(*asked)}
        for name, asked in compared.items()
    ]
    tasks.append(lambda: {"a share of answers (Wilson)": of_wilson(worlds)})
    tasks += [
        lambda asked=asked: {
            f"a pair's ratio, {asked[0]} to {asked[1]} pairs of servers": of_servers(2 * worlds, *asked)
        }
        for asked in ((4, 4, 0), (4, 6, 10), (6, 8, 6))
    ]
    found = {name: counts for each in in_parallel(tasks) for name, counts in each.items()}
    print(f"\n{'what 95 % intervals cover':44} {'%':>6} {'of':>8}")
    missed = False
    for name, (held, whole) in found.items():
        share = 100 * held / whole
        margin = 3 * 100 * (0.05 * 0.95 / whole) ** 0.5
        outside = not GOAL[0] - margin <= share <= GOAL[1] + margin
        missed |= outside
        print(f"{name:44} {share:6.1f} {whole:8,}{'  outside' if outside else ''}")
    return missed


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS
    sys.exit(power(asked) | coverage(asked))
