"""Findings about published numbers, each made again from the facts: what recomputing gives, and from which numbers.

Raw values are used where they are known, printed ones elsewhere. A check is a function of the facts that returns a
sentence and the figures that went into it; `findings.csv` names it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anncestry.report.audit import Figure, Published
from anncestry.report.welch import Sample, differ


@dataclass(frozen=True)
class Recomputed:
    """What a check found, in words, and the published numbers that it used."""

    text: str
    figures: tuple[Figure, ...]


Check = Callable[[Published], Recomputed]
CHECKS: dict[str, Check] = {}

RUNS = 3
"""Runs behind each ± of the paper; it is the population's standard deviation (divided by n)."""

TABLES = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV")
_SMALL = ("fashion-mnist-784-euclidean", "nytimes-256-angular", "glove-25-angular", "sift-128-euclidean")
_DEEP = "deep-image-96-angular"
_GLOVE = "glove-100-angular"
_SIFT = "sift-128-euclidean"
_GIST = "gist-960-euclidean"
_CLUSTER_RUNS = ("20260201_223604", "20260201_230242")
_GLOVE_PARTIAL = "20260201_203505"


def _check(function: Check) -> Check:
    CHECKS[function.__name__.removeprefix("_")] = function
    return function


def _raw(figure: Figure) -> float:
    return figure.number if figure.source is None else figure.source


def _by(figures: Iterable[Figure], *names: str) -> dict[tuple[str, ...], Figure]:
    return {tuple(getattr(figure, name) for name in names): figure for figure in figures}


def _pairs(facts: Published, place: str, **where: str) -> dict[str, tuple[Figure, Figure]]:
    """By dataset: the figure of Milvus and that of Weaviate."""
    found = _by(facts.all(place, **where), "dataset", "system")
    datasets = dict.fromkeys(dataset for dataset, _ in found)
    return {
        dataset: (found[dataset, "milvus"], found[dataset, "weaviate"])
        for dataset in datasets
        if (dataset, "milvus") in found and (dataset, "weaviate") in found
    }


def _ratios(pairs: dict[str, tuple[Figure, Figure]]) -> dict[str, float]:
    """By dataset: Weaviate's divided by Milvus'."""
    return {dataset: _raw(weaviate) / _raw(milvus) for dataset, (milvus, weaviate) in pairs.items()}


def _of(pairs: dict[str, tuple[Figure, Figure]]) -> tuple[Figure, ...]:
    return tuple(figure for pair in pairs.values() for figure in pair)


def _range(values: Sequence[float] | Iterable[float], form: str = ".2f") -> str:
    listed = list(values)
    return f"{min(listed):{form}} to {max(listed):{form}}"


def _percent(of: float, to: float) -> float:
    return 100 * (to / of - 1)


def _rows(facts: Published) -> dict[str, float]:
    return {figure.dataset: figure.number for figure in facts.all("Table I", metric="rows")}


def _dims(facts: Published) -> dict[str, float]:
    return {figure.dataset: figure.number for figure in facts.all("Table I", metric="dim")}


def _correlation(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.correlation(list(x), list(y))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


# The paper: loading


@_check
def _load_ratios(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table II", metric="load_s")
    ratios = _ratios(pairs)
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return Recomputed(f"Table II gives {_range(ratios.values())} ({least} to {most})", _of(pairs))


@_check
def _load_ratio_by_size(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table II", metric="load_s")
    ratios, rows = _ratios(pairs), _rows(facts)
    rank = _correlation(_ranks([rows[name] for name in ratios]), _ranks(list(ratios.values())))
    gloves = ", ".join(f"{ratios[f'glove-{dim}-angular']:.1f}" for dim in (25, 100, 200))
    return Recomputed(
        f"rank correlation of ratio and rows is {rank:.2f} over {len(ratios)} datasets; at one and the same number of "
        f"rows the three GloVe sets have {gloves}",
        _of(pairs),
    )


@_check
def _glove_load(facts: Published) -> Recomputed:
    printed = facts.all("Table II", dataset=_GLOVE)
    return Recomputed(f"all {len(printed)} come from {printed[0].source_file}, the run of three nodes", tuple(printed))


# The paper: latency, throughput, filters


@_check
def _cluster_latency(facts: Published) -> Recomputed:
    return _changes(facts, "Table XII", "p50_ms")


@_check
def _cluster_qps(facts: Published) -> Recomputed:
    return _changes(facts, "Table XIV", "qps")


def _changes(facts: Published, place: str, metric: str) -> Recomputed:
    figures = facts.all(place, metric=metric)
    found = []
    for figure in figures:
        if figure.ran_on == "standalone":
            other = next(
                one
                for one in figures
                if (one.dataset, one.system) == (figure.dataset, figure.system) and one.ran_on == "cluster-3"
            )
            found.append(f"{figure.system} {figure.dataset} {_percent(_raw(figure), _raw(other)):+.1f} %")
    return Recomputed("; ".join(found), tuple(figures))


@_check
def _scaling_16(facts: Published) -> Recomputed:
    one, many = (facts.one("Table X", dataset=_SIFT, system="milvus", clients=n) for n in ("1", "16"))
    factor = _raw(many) / _raw(one)
    return Recomputed(
        f"Milvus on SIFT goes up {factor:.2f} times from one client to 16: {factor / 16:.0%} of linear", (one, many)
    )


@_check
def _scaling_8(facts: Published) -> Recomputed:
    found, used = [], []
    for system in ("milvus", "weaviate"):
        one = _by(facts.all("Table X", system=system, clients="1"), "dataset")
        eight = _by(facts.all("Table X", system=system, clients="8"), "dataset")
        shares = [_raw(eight[name]) / (8 * _raw(one[name])) for name in one]
        found.append(f"{system} {_range(shares)}")
        used += [*one.values(), *eight.values()]
    return Recomputed(f"QPS of 8 clients over 8 times that of one: {'; '.join(found)}", tuple(used))


@_check
def _concurrency_ratio(facts: Published) -> Recomputed:
    four, eight = (_pairs(facts, "Table X", clients=n) for n in ("4", "8"))
    return Recomputed(
        f"Weaviate over Milvus: {_range(_ratios(four).values())} at 4 clients, {_range(_ratios(eight).values())} at 8",
        (*_of(four), *_of(eight)),
    )


@_check
def _gist_concurrency(facts: Published) -> Recomputed:
    pairs = {n: _pairs(facts, "Table X", clients=n, dataset=_GIST)[_GIST] for n in ("1", "4", "8", "16")}
    shown = ", ".join(f"{_raw(w) / _raw(m):.2f} at {n}" for n, (m, w) in pairs.items())
    return Recomputed(f"Weaviate's QPS over Milvus' by clients: {shown}", _of(pairs))


@_check
def _glove_tie(facts: Published) -> Recomputed:
    milvus, weaviate = _pairs(facts, "Table X", clients="16", dataset="glove-25-angular")["glove-25-angular"]
    apart = abs(_percent(_raw(weaviate), _raw(milvus)))
    return Recomputed(f"raw {_raw(milvus):.2f} and {_raw(weaviate):.2f}: {apart:.2f} % apart", (milvus, weaviate))


def _which_is(facts: Published, place: str, lower: bool, digits: int, **where: str) -> Recomputed:
    (pair,) = _pairs(facts, place, **where).values()
    milvus, weaviate = map(_raw, pair)
    better = "Milvus" if (milvus < weaviate) == lower else "Weaviate"
    return Recomputed(f"raw {milvus:.{digits}f} and {weaviate:.{digits}f}: {better} is ahead", pair)


@_check
def _bold_gist_1(facts: Published) -> Recomputed:
    return _which_is(facts, "Table X", False, 2, dataset=_GIST, clients="1")


@_check
def _bold_nytimes_p95(facts: Published) -> Recomputed:
    return _which_is(facts, "Table IV", True, 3, dataset="nytimes-256-angular", metric="p95_ms")


@_check
def _bold_fashion_qps(facts: Published) -> Recomputed:
    return _which_is(facts, "Table VI", False, 1, dataset="fashion-mnist-784-euclidean", k="100")


@_check
def _bold_fashion_recall(facts: Published) -> Recomputed:
    return _which_is(facts, "Table VIII", False, 4, dataset="fashion-mnist-784-euclidean", k="10")


@_check
def _bold_deep_recall(facts: Published) -> Recomputed:
    pairs = {
        (name, k): pair
        for k in ("10", "100")
        for name, pair in _pairs(facts, "Table VIII", k=k).items()
        if name.startswith(_DEEP)
    }
    ahead = sum(_raw(milvus) > _raw(weaviate) for milvus, weaviate in pairs.values())
    return Recomputed(f"Milvus is ahead in {ahead} of {len(pairs)} cells", tuple(f for p in pairs.values() for f in p))


def _rounding(facts: Published, *places: str) -> Recomputed:
    traced = [figure for place in places for figure in facts.all(place) if figure.agrees is not None]
    wrong = [figure for figure in traced if not figure.agrees]
    shown = "; ".join(f"{f.place} {f.dataset} {f.system} {f.value}, raw {f.source_value}" for f in wrong)
    return Recomputed(f"{len(wrong)} of {len(traced)} are not the raw value, rounded: {shown or 'none'}", tuple(wrong))


@_check
def _rounding_x(facts: Published) -> Recomputed:
    return _rounding(facts, "Table X")


@_check
def _rounding_vii(facts: Published) -> Recomputed:
    return _rounding(facts, "Table VII")


@_check
def _rounding_xii(facts: Published) -> Recomputed:
    return _rounding(facts, "Table XII")


@_check
def _rounding_xiii(facts: Published) -> Recomputed:
    return _rounding(facts, "Table XIII")


@_check
def _all_traced(facts: Published) -> Recomputed:
    figures = [figure for table in TABLES for figure in facts.all(f"Table {table}")]
    traced = [figure for figure in figures if figure.agrees is not None]
    good = sum(bool(figure.agrees) for figure in traced)
    spreads = [figure for figure in traced if figure.std and figure.source_std]
    same = sum(
        abs(float(f.std) - float(f.source_std)) <= 0.5 * 10.0 ** -len(f.std.partition(".")[2]) + 1e-9 for f in spreads
    )
    return Recomputed(
        f"{good} of {len(traced)} printed numbers are the raw value, rounded ({len(figures) - len(traced)} untraced); "
        f"{same} of {len(spreads)} standard deviations",
        tuple(figure for figure in traced if not figure.agrees),
    )


@_check
def _scale_by_size(facts: Published) -> Recomputed:
    found, used = [], []
    for system in ("milvus", "weaviate"):
        two, five = (
            facts.one("Table IV", dataset=f"{_DEEP}-{size}", system=system, metric="p50_ms") for size in ("2m", "5m")
        )
        found.append(
            f"{system} {_raw(two):.2f} to {_raw(five):.2f} ms, {_raw(five) / _raw(two):.2f} times, ± {five.std}"
        )
        used += [two, five]
    return Recomputed("; ".join(found), tuple(used))


@_check
def _gist_cold(facts: Published) -> Recomputed:
    ten, hundred = (facts.one("Table VI", dataset=_GIST, system="milvus", k=k) for k in ("10", "100"))
    spread = {
        k: facts.one(place, dataset=_GIST, system="milvus", metric="p95_ms")
        for k, place in (("10", "Table IV"), ("100", "Table V"))
    }
    return Recomputed(
        f"QPS {_raw(ten):.1f} at K=10 but {_raw(hundred):.1f} at K=100; p95 {_raw(spread['10']):.1f} and "
        f"{_raw(spread['100']):.1f} ms: the first workload of the run is the slow one",
        (ten, hundred, *spread.values()),
    )


@_check
def _qps_from_latency(facts: Published) -> Recomputed:
    used, apart = [], []
    for k, place in (("10", "Table IV"), ("100", "Table V")):
        latency = _by(facts.all(place, metric="p50_ms"), "dataset", "system")
        for (dataset, system), figure in _by(facts.all("Table VI", k=k), "dataset", "system").items():
            implied = 1000 / _raw(latency[dataset, system])
            if abs(_percent(_raw(figure), implied)) > 20:
                apart.append(f"{system} {dataset} K={k}")
                used += [figure, latency[dataset, system]]
    return Recomputed(f"1000 / p50 differs from the printed QPS by more than 20 % for {', '.join(apart)}", tuple(used))


@_check
def _lower_spread(facts: Published) -> Recomputed:
    found, used = [], []
    for place in ("Table IV", "Table V"):
        for metric in ("p50_ms", "p95_ms"):
            pairs = _pairs(facts, place, metric=metric)
            lost = [name for name, (m, w) in pairs.items() if float(w.source_std) < float(m.source_std)]
            used += list(_of({name: pairs[name] for name in lost}))
            found.append(f"{place} {metric} {', '.join(lost) or 'nowhere'}")
    return Recomputed(f"Weaviate's standard deviation is the lower one in: {'; '.join(found)}", tuple(used))


@_check
def _significance(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table IV", metric="p50_ms")

    def sample(figure: Figure) -> Sample:
        # Printed is the population's deviation; the test wants the sample's.
        return Sample(_raw(figure), float(figure.source_std) * math.sqrt(RUNS / (RUNS - 1)), RUNS)

    sure = [name for name, (m, w) in pairs.items() if differ(sample(m), sample(w))]
    return Recomputed(
        f"by Welch's test of {RUNS} runs a side, p50 differs for {', '.join(sure) or 'none'}; for the other "
        f"{len(pairs) - len(sure)} of {len(pairs)} datasets, GIST and Deep-5M among them, that can't be told",
        _of(pairs),
    )


@_check
def _below_4_ms(facts: Published) -> Recomputed:
    dims, rows = _dims(facts), _rows(facts)
    figures = [f for f in facts.all("Table IV", metric="p50_ms") if dims[f.dataset] < 200 and rows[f.dataset] < 1.5e6]
    over = [figure for figure in figures if _raw(figure) > 4]
    shown = ", ".join(f"{f.system} {f.dataset} {_raw(f):.2f} ms" for f in over)
    return Recomputed(f"{len(over)} of {len(figures)} are above 4 ms: {shown}", tuple(over))


@_check
def _qps_range(facts: Published) -> Recomputed:
    dims, rows = _dims(facts), _rows(facts)
    found, used = [], []
    for k in ("10", "100"):
        figures = [f for f in facts.all("Table VI", k=k) if rows[f.dataset] < 1.5e6 and dims[f.dataset] < 900]
        found.append(f"K={k}: {_range(map(_raw, figures), '.0f')}")
        used += figures
    return Recomputed("; ".join(found), tuple(used))


@_check
def _filter_overheads(facts: Published) -> Recomputed:
    figures = facts.all("Table VII", metric="p50_ms")
    by = _by(figures, "dataset", "system", "filtered")
    names = dict.fromkeys((figure.dataset, figure.system) for figure in figures)
    overheads = {(d, s): _percent(_raw(by[d, s, "0"]), _raw(by[d, s, "1"])) for d, s in names}
    shown = ", ".join(f"{s} {d} {value:+.1f} %" for (d, s), value in overheads.items())
    left_out = sorted(_rows(facts).keys() - {dataset for dataset, _ in names})
    return Recomputed(f"{shown}; the table leaves out {', '.join(left_out)}", tuple(figures))


@_check
def _cpu_ratios(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table III", metric="cpu_avg_pct")
    ratios = _ratios(pairs)
    outside = [name for name, ratio in ratios.items() if not 2 <= ratio <= 5]
    shown = ", ".join(f"{name} {ratios[name]:.2f}" for name in outside)
    return Recomputed(f"ratios {_range(ratios.values())}; outside of 2 to 5: {shown}", _of(pairs))


# The paper: recall, storage, scale


@_check
def _recall_above_99(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table VIII", k="10")
    good = [name for name, pair in pairs.items() if min(map(_raw, pair)) > 0.99]
    return Recomputed(f"both are above 0.99 on {len(good)} of {len(pairs)} datasets: {', '.join(good)}", _of(pairs))


@_check
def _gist_recall(facts: Published) -> Recomputed:
    milvus, weaviate = _pairs(facts, "Table VIII", k="10", dataset=_GIST)[_GIST]
    points, relative = 100 * (_raw(milvus) - _raw(weaviate)), _percent(_raw(weaviate), _raw(milvus))
    return Recomputed(f"{points:.1f} percentage points, which is {relative:+.1f} % relative", (milvus, weaviate))


@_check
def _recall_gap_by_size(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table VIII", k="10")
    size = {name: rows * _dims(facts)[name] * 4 / 1e9 for name, rows in _rows(facts).items()}
    shown = [
        f"{name} ({size[name]:.2f} GB) {_raw(pairs[name][0]) - _raw(pairs[name][1]):+.3f}"
        for name in sorted(pairs, key=size.__getitem__)
        if name != _GLOVE
    ]
    return Recomputed(f"Milvus minus Weaviate by raw size: {', '.join(shown)}", _of(pairs))


@_check
def _deep_recall(facts: Published) -> Recomputed:
    found, used = [], []
    whole = 9_990_000
    for size in ("2m", "5m"):
        rows = _rows(facts)[f"{_DEEP}-{size}"]
        figures = facts.all("Table VIII", dataset=f"{_DEEP}-{size}", k="10")
        share = rows / whole
        found.append(
            f"{size}: {share:.3f} of the rows, recall over that {_range((_raw(f) / share for f in figures), '.3f')}"
        )
        used += figures
    return Recomputed("; ".join(found), tuple(used))


@_check
def _sift_recall_modes(facts: Published) -> Recomputed:
    figures = facts.all("Table XV", dataset=_SIFT)
    by = _by(figures, "system", "ran_on")
    shown = ", ".join(
        f"{system} {100 * (_raw(by[system, 'cluster-3']) - _raw(by[system, 'standalone'])):+.2f} points"
        for system in ("milvus", "weaviate")
    )
    return Recomputed(f"at K=10: {shown}", tuple(figures))


@_check
def _glove_recall(facts: Published) -> Recomputed:
    by = _by(facts.all("Table XV", dataset=_GLOVE, system="weaviate"), "ran_on")
    alone, cluster = by["standalone",], by["cluster-3",]
    share = _raw(alone) / _raw(cluster)
    sizes = {dim: float(_run(facts, f"glove-{dim}-angular")["weaviate_dir_mb"]) for dim in (25, 200)}
    expected = sizes[25] + (sizes[200] - sizes[25]) * (100 - 25) / (200 - 25)
    stored = float(facts.runs[_GLOVE_PARTIAL]["weaviate_dir_mb"])
    return Recomputed(
        f"recall {_raw(alone):.4f} is {share:.1%} of the cluster's {_raw(cluster):.4f}; the store of that run, "
        f"{stored:,.0f} MB, is {stored / expected:.0%} of the {expected:,.0f} MB between those of GloVe-25 and -200: "
        "both say that most vectors are missing",
        (alone, cluster),
    )


def _run(facts: Published, dataset: str) -> dict[str, str]:
    found = [dict(run) for run in facts.runs.values() if run["dataset"] == dataset and run["used_in"] != "unused"]
    return found[-1]


@_check
def _storage_range(facts: Published) -> Recomputed:
    figures = facts.all("Table IX", system="milvus", metric="storage_mb")
    least, most = min(map(_raw, figures)), max(map(_raw, figures))
    return Recomputed(f"{least:,.0f} to {most:,.0f} MB: {_percent(least, most):+.0f} %", tuple(figures))


@_check
def _storage_ratios(facts: Published) -> Recomputed:
    raw = _by(facts.all("Table IX", metric="raw_mb"), "dataset")
    stored = facts.all("Table IX", system="milvus", metric="storage_mb")
    times = [_raw(figure) / _raw(raw[figure.dataset,]) for figure in stored]
    return Recomputed(f"stored is {_range(times, '.1f')} times raw: an expansion", (*raw.values(), *stored))


@_check
def _storage_linear(facts: Published) -> Recomputed:
    raw = _by(facts.all("Table IX", metric="raw_mb"), "dataset")
    stored = facts.all("Table IX", system="weaviate", metric="storage_mb")
    y = [_raw(figure) for figure in stored]
    by_raw = _correlation([_raw(raw[figure.dataset,]) for figure in stored], y) ** 2
    by_rows = _correlation([_rows(facts)[figure.dataset] for figure in stored], y) ** 2
    return Recomputed(f"R² is {by_raw:.2f} against raw size, {by_rows:.2f} against rows", tuple(stored))


@_check
def _storage_amortised(facts: Published) -> Recomputed:
    pairs = _pairs(facts, "Table IX", metric="storage_mb")
    smaller = sum(_raw(w) < _raw(m) for m, w in pairs.values())
    milvus, weaviate = map(_raw, pairs[_GIST])
    return Recomputed(
        f"Weaviate's is the smaller in {smaller} of {len(pairs)} rows; GIST {milvus:,.0f} and {weaviate:,.0f} MB",
        _of(pairs),
    )


@_check
def _storage_deep(facts: Published) -> Recomputed:
    raw = facts.one("Table IX", dataset=f"{_DEEP}-5m", metric="raw_mb")
    stored = facts.one("Table IX", dataset=f"{_DEEP}-5m", system="weaviate", metric="storage_mb")
    return Recomputed(f"{_raw(stored):,.0f} / {_raw(raw):,.0f} = {_raw(stored) / _raw(raw):.2f}", (raw, stored))


@_check
def _storage_omitted(facts: Published) -> Recomputed:
    left_out = sorted(_rows(facts).keys() - {figure.dataset for figure in facts.all("Table IX")})
    runs = [run for run in facts.runs.values() if run["dataset"] in left_out]
    shown = ", ".join(f"{run['weaviate_dir_mb']} MB ({run['topology']})" for run in runs)
    return Recomputed(f"left out: {', '.join(left_out)}; its runs recorded {shown} for Weaviate", ())


@_check
def _milvus_stopped(facts: Published) -> Recomputed:
    cluster = [facts.runs[run] for run in _CLUSTER_RUNS]
    others = {
        run["etcd_dir_mb"] for name, run in facts.runs.items() if name not in _CLUSTER_RUNS and run["etcd_dir_mb"]
    }
    (other,) = others
    less = (float(other) - float(cluster[0]["etcd_dir_mb"])) * 2**20
    return Recomputed(
        f"both cluster runs record {cluster[0]['milvus_dir_mb']} and {cluster[1]['milvus_dir_mb']} MB for Milvus and "
        f"{cluster[0]['etcd_dir_mb']} MB for etcd, all other runs {other} MB: {less / 1e6:.1f} million bytes less, "
        "one log segment that a stopped etcd gives up",
        (),
    )


@_check
def _dimension_slopes(facts: Published) -> Recomputed:
    names = {dim: f"glove-{dim}-angular" for dim in (25, 200)} | {960: _GIST}
    p50 = {dim: facts.one("Table IV", dataset=name, system="milvus", metric="p50_ms") for dim, name in names.items()}
    low = 1e3 * (_raw(p50[200]) - _raw(p50[25])) / 175
    high = 1e3 * (_raw(p50[960]) - _raw(p50[200])) / 760
    return Recomputed(
        f"Milvus: {low:.1f} µs a dimension from 25 to 200, {high:.1f} from 200 to 960; p50 grows "
        f"{_raw(p50[960]) / _raw(p50[200]):.2f} times for {960 / 200:.1f} times the dimensions",
        tuple(p50.values()),
    )


@_check
def _cluster_as_standalone(facts: Published) -> Recomputed:
    figures = [
        figure
        for table in TABLES
        for figure in facts.all(f"Table {table}")
        if figure.ran_on == "cluster-3" and figure.topology in ("standalone", "")
    ]
    places = ", ".join(dict.fromkeys(figure.place.removeprefix("Table ") for figure in figures))
    return Recomputed(
        f"{len(figures)} numbers of GloVe-100 in Tables {places} come from the cluster's run", tuple(figures)
    )


# The other documents


@_check
def _milvus22_gains(facts: Published) -> Recomputed:
    found, used = [], []
    for place in ("cluster", "standalone"):
        old, new = (
            facts.one(f"2.2.0 vs 2.1.0: {place}", "milvus-2.2", version=v, metric="qps") for v in ("2.1.0", "2.2.0")
        )
        found.append(f"{place} {_percent(old.number, new.number):+.1f} %")
        used += [old, new]
    return Recomputed("; ".join(found), tuple(used))


def _scale(facts: Published, place: str, sizes: Sequence[float]) -> Recomputed:
    figures = facts.all(place, "milvus-2.2", metric="qps")
    first, last = figures[0].number, figures[-1].number
    factor, ideal = last / first, sizes[-1] / sizes[0]
    each = ", ".join(f"{figure.number / size:,.0f}" for figure, size in zip(figures, sizes, strict=True))
    return Recomputed(
        f"{factor:.2f} times for {ideal:.0f} times ({factor / ideal:.0%}); per unit {each}", tuple(figures)
    )


@_check
def _milvus22_cores(facts: Published) -> Recomputed:
    return _scale(facts, "2.2.0 scale-up (CPU cores)", (8, 12, 16, 32))


@_check
def _milvus22_replicas(facts: Published) -> Recomputed:
    return _scale(facts, "2.2.0 scale-out (replicas)", (1, 2, 4, 8))


@_check
def _milvus22_clients(facts: Published) -> Recomputed:
    figures = [
        f
        for place in ("2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)")
        for f in facts.all(place, "milvus-2.2", metric="qps")
    ]
    return Recomputed(f"clients by row: {', '.join(figure.clients for figure in figures)}", tuple(figures))


@_check
def _milvus22_little(facts: Published) -> Recomputed:
    used, found = [], []
    for place in ("2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)"):
        qps, p50 = (facts.all(place, "milvus-2.2", metric=metric) for metric in ("qps", "p50_ms"))
        for rate, median in zip(qps, p50, strict=True):
            found.append(f"{1e3 * int(rate.clients) / rate.number:.0f}/{median.number:.0f}")
            used += [rate, median]
    return Recomputed(f"clients / QPS against the printed median, ms: {', '.join(dict.fromkeys(found))}", tuple(used))


@_check
def _grpc_ingestion(facts: Published) -> Recomputed:
    rest, grpc = facts.all("text Data ingestion", "weaviate-grpc", metric="load_s")
    saved = (rest.number - grpc.number) * 100 / 3600
    return Recomputed(
        f"{grpc.number:.0f} / {rest.number:.0f} s = {grpc.number / rest.number:.3f}; for 100 times the objects "
        f"{saved:.1f} h are saved",
        (rest, grpc),
    )


@_check
def _grpc_throughput(facts: Published) -> Recomputed:
    less = facts.all("text Queries", "weaviate-grpc", metric="change_pct")
    gain = facts.one("text Queries", "weaviate-grpc", metric="ratio")
    times = ", ".join(
        f"{-figure.number:.0f} % less time is {1 / (1 + figure.number / 100):.2f} times" for figure in less
    )
    return Recomputed(f"{times}; {gain.number} times is {100 * (1 - 1 / gain.number):.1f} % less", (*less, gain))


_POLARDB = ("Cohere 768D 1M: concurrency", "Cohere 768D 10M: concurrency", "OpenAI 1536D 5M: concurrency")


@_check
def _polardb_little(facts: Published) -> Recomputed:
    worst, used = 0.0, []
    for place in _POLARDB:
        for rate, mean in zip(
            facts.all(place, "polardb", metric="qps"), facts.all(place, "polardb", metric="avg_ms"), strict=True
        ):
            worst = max(worst, abs(_percent(mean.number, 1e3 * int(rate.clients) / rate.number)))
            used += [rate, mean]
    return Recomputed(f"clients / QPS is the printed mean within {worst:.2f} % in {len(used) // 2} rows", tuple(used))


@_check
def _polardb_scaling(facts: Published) -> Recomputed:
    found, used = [], []
    for place in _POLARDB:
        rates = facts.all(place, "polardb", metric="qps")
        last = _percent(rates[-2].number, rates[-1].number)
        found.append(
            f"{rates[0].dataset} {rates[-1].number / rates[0].number:.2f} times, {last:+.1f} % in the last step"
        )
        used += rates
    return Recomputed(f"from 20 to 100 clients: {'; '.join(found)}", tuple(used))


@_check
def _polardb_peak(facts: Published) -> Recomputed:
    found = []
    for place in _POLARDB:
        rates = facts.all(place, "polardb", metric="qps")
        found.append(max(rates, key=lambda figure: figure.number))
    levels = ", ".join(f"{figure.dataset} at {figure.clients}" for figure in found)
    return Recomputed(f"the highest is that of the most clients tried: {levels}", tuple(found))


@_check
def _polardb_summary(facts: Published) -> Recomputed:
    again = facts.all("Summary and comparison", "polardb")
    detail = [f for f in facts.figures if f.document == "polardb" and f.place != "Summary and comparison"]
    known = {(f.dataset, f.metric, f.number) for f in detail}
    same = [f for f in again if (f.dataset, f.metric, f.number) in known]
    return Recomputed(
        f"{len(same)} of {len(again)} cells of the summary stand elsewhere with the same value", tuple(again)
    )


_DISKANN = {
    "1M": "Dataset: 768D1M — 1 Million Vectors",
    "10M": "Dataset: 768D10M — 10 Million Vectors",
    "100M": "Dataset: 768D10M — 100 Million Vectors",
}
_LOCAL, _ONE_PATH, _FOUR_PATHS, _TWO_NICS = (
    "local DRAM",
    "remote NVMe-oF 1-path 1-NIC",
    "remote NVMe-oF 4-path 1-NIC",
    "remote NVMe-oF 4-path 2-NIC",
)


def _diskann(facts: Published, size: str, topology: str, metric: str) -> Figure:
    return facts.one(_DISKANN[size], "diskann", topology=topology, metric=metric)


def _diskann_change(facts: Published, a: str, b: str, sizes: Sequence[str], metric: str = "qps") -> Recomputed:
    pairs = {size: (_diskann(facts, size, a, metric), _diskann(facts, size, b, metric)) for size in sizes}
    shown = ", ".join(
        f"{size} {one.number:g} to {two.number:g}: {_percent(one.number, two.number):+.2f} %"
        for size, (one, two) in pairs.items()
    )
    return Recomputed(shown, _of(pairs))


@_check
def _diskann_1m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["1M"])


@_check
def _diskann_10m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["10M"])


@_check
def _diskann_100m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["100M"])


@_check
def _diskann_p95(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["1M", "10M"], "p95_ms")


@_check
def _diskann_paths(facts: Published) -> Recomputed:
    one, four = (_diskann(facts, "100M", topology, "p95_ms") for topology in (_ONE_PATH, _FOUR_PATHS))
    return Recomputed(f"{one.number:,g} / {four.number:g} = {one.number / four.number:.1f}", (one, four))


@_check
def _diskann_nics(facts: Published) -> Recomputed:
    return _diskann_change(facts, _FOUR_PATHS, _TWO_NICS, ["1M", "10M", "100M"])


@_check
def _diskann_recall_10m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["10M"], "recall_by_id")


@_check
def _diskann_recall_100m(facts: Published) -> Recomputed:
    table = _diskann(facts, "100M", _LOCAL, "recall_by_id")
    said = facts.one("text Observations", "diskann", metric="recall_by_id", topology=_LOCAL)
    others = [_diskann(facts, "100M", topology, "recall_by_id") for topology in (_ONE_PATH, _FOUR_PATHS, _TWO_NICS)]
    return Recomputed(
        f"HNSW is {table.value} in the table, {said.value} in the text; DiskANN "
        f"{_range((f.number for f in others), '.4f')}, above the one and below the other",
        (table, said, *others),
    )


@_check
def _diskann_recalls_10m(facts: Published) -> Recomputed:
    figures = [_diskann(facts, "10M", topology, "recall_by_id") for topology in (_ONE_PATH, _FOUR_PATHS, _TWO_NICS)]
    return Recomputed(", ".join(f"{figure.topology} {figure.value}" for figure in figures), tuple(figures))


@_check
def _diskann_drop(facts: Published) -> Recomputed:
    rates = [_diskann(facts, size, _LOCAL, "qps") for size in _DISKANN]
    steps = " and ".join(f"{a.number / b.number:.1f}" for a, b in pairwise(rates))
    return Recomputed(f"QPS of HNSW falls {steps} times for ten times the rows each", tuple(rates))


@_check
def _diskann_memory(facts: Published) -> Recomputed:
    raw, links = 100e6 * 768 * 4, 100e6 * 2 * 30 * 4
    return Recomputed(
        f"{raw / 1e9:.0f} GB of vectors and {links / 1e9:.0f} GB of links, {(raw + links) / 1e9:.0f} GB", ()
    )


@_check
def _diskann_same_tail(facts: Published) -> Recomputed:
    figures = [
        _diskann(facts, "1M", topology, metric)
        for topology in (_ONE_PATH, _FOUR_PATHS)
        for metric in ("p95_ms", "p99_ms")
    ]
    one, four = (_diskann(facts, "1M", topology, "qps") for topology in (_ONE_PATH, _FOUR_PATHS))
    return Recomputed(
        f"p95/p99 {figures[0].value}/{figures[1].value} and {figures[2].value}/{figures[3].value} ms, while QPS is "
        f"{four.number / one.number:.2f} times",
        (*figures, one, four),
    )
