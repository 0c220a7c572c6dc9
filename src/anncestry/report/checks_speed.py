"""What the paper says of loading, latency, throughput and filters, made again from its numbers."""

from __future__ import annotations

import math

from anncestry.report.audit import Figure, Published
from anncestry.report.checks import (
    DEEP,
    GIST,
    GLOVE,
    SIFT,
    TABLES,
    Check,
    Recomputed,
    both,
    correlation_of,
    dims_by_dataset,
    into,
    keyed,
    pairs_of,
    percent,
    ranks_of,
    ratios_of,
    rows_by_dataset,
    span,
    value_of,
)
from anncestry.report.welch import Sample, differ

CHECKS: dict[str, Check] = {}
_check = into(CHECKS)

RUNS = 3
"""Runs behind each ± of the paper; it is the population's standard deviation (divided by n)."""


@_check
def _load_ratios(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table II", metric="load_s")
    ratios = ratios_of(pairs)
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return Recomputed(f"Table II gives {span(ratios.values())} ({least} to {most})", both(pairs))


@_check
def _load_ratio_by_size(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table II", metric="load_s")
    ratios, rows = ratios_of(pairs), rows_by_dataset(facts)
    rank = correlation_of(ranks_of([rows[name] for name in ratios]), ranks_of(list(ratios.values())))
    gloves = ", ".join(f"{ratios[f'glove-{dim}-angular']:.1f}" for dim in (25, 100, 200))
    return Recomputed(
        f"rank correlation of ratio and rows is {rank:.2f} over {len(ratios)} datasets; at one and the same number of "
        f"rows the three GloVe sets have {gloves}",
        both(pairs),
    )


@_check
def _glove_load(facts: Published) -> Recomputed:
    printed = facts.all("Table II", dataset=GLOVE)
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
            found.append(f"{figure.system} {figure.dataset} {percent(value_of(figure), value_of(other)):+.1f} %")
    return Recomputed("; ".join(found), tuple(figures))


@_check
def _scaling_16(facts: Published) -> Recomputed:
    one, many = (facts.one("Table X", dataset=SIFT, system="milvus", clients=n) for n in ("1", "16"))
    factor = value_of(many) / value_of(one)
    return Recomputed(
        f"Milvus on SIFT goes up {factor:.2f} times from one client to 16: {factor / 16:.0%} of linear", (one, many)
    )


@_check
def _scaling_8(facts: Published) -> Recomputed:
    found, used = [], []
    for system in ("milvus", "weaviate"):
        one = keyed(facts.all("Table X", system=system, clients="1"), "dataset")
        eight = keyed(facts.all("Table X", system=system, clients="8"), "dataset")
        shares = [value_of(eight[name]) / (8 * value_of(one[name])) for name in one]
        found.append(f"{system} {span(shares)}")
        used += [*one.values(), *eight.values()]
    return Recomputed(f"QPS of 8 clients over 8 times that of one: {'; '.join(found)}", tuple(used))


@_check
def _concurrency_ratio(facts: Published) -> Recomputed:
    four, eight = (pairs_of(facts, "Table X", clients=n) for n in ("4", "8"))
    return Recomputed(
        f"Weaviate over Milvus: {span(ratios_of(four).values())} at 4 clients, {span(ratios_of(eight).values())} at 8",
        (*both(four), *both(eight)),
    )


@_check
def _gist_concurrency(facts: Published) -> Recomputed:
    pairs = {n: pairs_of(facts, "Table X", clients=n, dataset=GIST)[GIST] for n in ("1", "4", "8", "16")}
    shown = ", ".join(f"{value_of(w) / value_of(m):.2f} at {n}" for n, (m, w) in pairs.items())
    return Recomputed(f"Weaviate's QPS over Milvus' by clients: {shown}", both(pairs))


@_check
def _glove_tie(facts: Published) -> Recomputed:
    milvus, weaviate = pairs_of(facts, "Table X", clients="16", dataset="glove-25-angular")["glove-25-angular"]
    apart = abs(percent(value_of(weaviate), value_of(milvus)))
    return Recomputed(
        f"raw {value_of(milvus):.2f} and {value_of(weaviate):.2f}: {apart:.2f} % apart", (milvus, weaviate)
    )


def _which_is(facts: Published, place: str, lower: bool, digits: int, **where: str) -> Recomputed:
    (pair,) = pairs_of(facts, place, **where).values()
    milvus, weaviate = map(value_of, pair)
    better = "Milvus" if (milvus < weaviate) == lower else "Weaviate"
    return Recomputed(f"raw {milvus:.{digits}f} and {weaviate:.{digits}f}: {better} is ahead", pair)


@_check
def _bold_gist_1(facts: Published) -> Recomputed:
    return _which_is(facts, "Table X", False, 2, dataset=GIST, clients="1")


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
        for name, pair in pairs_of(facts, "Table VIII", k=k).items()
        if name.startswith(DEEP)
    }
    ahead = sum(value_of(milvus) > value_of(weaviate) for milvus, weaviate in pairs.values())
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
            facts.one("Table IV", dataset=f"{DEEP}-{size}", system=system, metric="p50_ms") for size in ("2m", "5m")
        )
        found.append(
            f"{system} {value_of(two):.2f} to {value_of(five):.2f} ms, "
            f"{value_of(five) / value_of(two):.2f} times, ± {five.std}"
        )
        used += [two, five]
    return Recomputed("; ".join(found), tuple(used))


@_check
def _gist_cold(facts: Published) -> Recomputed:
    ten, hundred = (facts.one("Table VI", dataset=GIST, system="milvus", k=k) for k in ("10", "100"))
    spread = {
        k: facts.one(place, dataset=GIST, system="milvus", metric="p95_ms")
        for k, place in (("10", "Table IV"), ("100", "Table V"))
    }
    return Recomputed(
        f"QPS {value_of(ten):.1f} at K=10 but {value_of(hundred):.1f} at K=100; p95 {value_of(spread['10']):.1f} and "
        f"{value_of(spread['100']):.1f} ms: the first workload of the run is the slow one",
        (ten, hundred, *spread.values()),
    )


@_check
def _qps_from_latency(facts: Published) -> Recomputed:
    used, apart = [], []
    for k, place in (("10", "Table IV"), ("100", "Table V")):
        latency = keyed(facts.all(place, metric="p50_ms"), "dataset", "system")
        for (dataset, system), figure in keyed(facts.all("Table VI", k=k), "dataset", "system").items():
            implied = 1000 / value_of(latency[dataset, system])
            if abs(percent(value_of(figure), implied)) > 20:
                apart.append(f"{system} {dataset} K={k}")
                used += [figure, latency[dataset, system]]
    return Recomputed(f"1000 / p50 differs from the printed QPS by more than 20 % for {', '.join(apart)}", tuple(used))


@_check
def _lower_spread(facts: Published) -> Recomputed:
    found, used = [], []
    for place in ("Table IV", "Table V"):
        for metric in ("p50_ms", "p95_ms"):
            pairs = pairs_of(facts, place, metric=metric)
            lost = [name for name, (m, w) in pairs.items() if float(w.source_std) < float(m.source_std)]
            used += list(both({name: pairs[name] for name in lost}))
            found.append(f"{place} {metric} {', '.join(lost) or 'nowhere'}")
    return Recomputed(f"Weaviate's standard deviation is the lower one in: {'; '.join(found)}", tuple(used))


@_check
def _significance(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table IV", metric="p50_ms")

    def sample(figure: Figure) -> Sample:
        # Printed is the population's deviation; the test wants the sample's.
        return Sample(value_of(figure), float(figure.source_std) * math.sqrt(RUNS / (RUNS - 1)), RUNS)

    sure = [name for name, (m, w) in pairs.items() if differ(sample(m), sample(w))]
    return Recomputed(
        f"by Welch's test of {RUNS} runs a side, p50 differs for {', '.join(sure) or 'none'}; for the other "
        f"{len(pairs) - len(sure)} of {len(pairs)} datasets, GIST and Deep-5M among them, that can't be told",
        both(pairs),
    )


@_check
def _below_4_ms(facts: Published) -> Recomputed:
    dims, rows = dims_by_dataset(facts), rows_by_dataset(facts)
    figures = [f for f in facts.all("Table IV", metric="p50_ms") if dims[f.dataset] < 200 and rows[f.dataset] < 1.5e6]
    over = [figure for figure in figures if value_of(figure) > 4]
    shown = ", ".join(f"{f.system} {f.dataset} {value_of(f):.2f} ms" for f in over)
    return Recomputed(f"{len(over)} of {len(figures)} are above 4 ms: {shown}", tuple(over))


@_check
def _qps_range(facts: Published) -> Recomputed:
    dims, rows = dims_by_dataset(facts), rows_by_dataset(facts)
    found, used = [], []
    for k in ("10", "100"):
        figures = [f for f in facts.all("Table VI", k=k) if rows[f.dataset] < 1.5e6 and dims[f.dataset] < 900]
        found.append(f"K={k}: {span(map(value_of, figures), '.0f')}")
        used += figures
    return Recomputed("; ".join(found), tuple(used))


@_check
def _filter_overheads(facts: Published) -> Recomputed:
    figures = facts.all("Table VII", metric="p50_ms")
    by = keyed(figures, "dataset", "system", "filtered")
    names = dict.fromkeys((figure.dataset, figure.system) for figure in figures)
    overheads = {(d, s): percent(value_of(by[d, s, "0"]), value_of(by[d, s, "1"])) for d, s in names}
    shown = ", ".join(f"{s} {d} {value:+.1f} %" for (d, s), value in overheads.items())
    left_out = sorted(rows_by_dataset(facts).keys() - {dataset for dataset, _ in names})
    return Recomputed(f"{shown}; the table leaves out {', '.join(left_out)}", tuple(figures))


@_check
def _cpu_ratios(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table III", metric="cpu_avg_pct")
    ratios = ratios_of(pairs)
    outside = [name for name, ratio in ratios.items() if not 2 <= ratio <= 5]
    shown = ", ".join(f"{name} {ratios[name]:.2f}" for name in outside)
    return Recomputed(f"ratios {span(ratios.values())}; outside of 2 to 5: {shown}", both(pairs))
