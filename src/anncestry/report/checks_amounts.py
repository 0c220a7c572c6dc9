"""What the paper says of recall, storage and scale, made again from its numbers."""

from __future__ import annotations

from anncestry.report.audit import Published
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
    rows_by_dataset,
    span,
    value_of,
)

CHECKS: dict[str, Check] = {}
_check = into(CHECKS)

_CLUSTER_RUNS = ("20260201_223604", "20260201_230242")
_GLOVE_PARTIAL = "20260201_203505"


@_check
def _recall_above_99(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table VIII", k="10")
    good = [name for name, pair in pairs.items() if min(map(value_of, pair)) > 0.99]
    return Recomputed(f"both are above 0.99 on {len(good)} of {len(pairs)} datasets: {', '.join(good)}", both(pairs))


@_check
def _gist_recall(facts: Published) -> Recomputed:
    milvus, weaviate = pairs_of(facts, "Table VIII", k="10", dataset=GIST)[GIST]
    points, relative = 100 * (value_of(milvus) - value_of(weaviate)), percent(value_of(weaviate), value_of(milvus))
    return Recomputed(f"{points:.1f} percentage points, which is {relative:+.1f} % relative", (milvus, weaviate))


@_check
def _recall_gap_by_size(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table VIII", k="10")
    size = {name: rows * dims_by_dataset(facts)[name] * 4 / 1e9 for name, rows in rows_by_dataset(facts).items()}
    shown = [
        f"{name} ({size[name]:.2f} GB) {value_of(pairs[name][0]) - value_of(pairs[name][1]):+.3f}"
        for name in sorted(pairs, key=size.__getitem__)
        if name != GLOVE
    ]
    return Recomputed(f"Milvus minus Weaviate by raw size: {', '.join(shown)}", both(pairs))


@_check
def _deep_recall(facts: Published) -> Recomputed:
    found, used = [], []
    whole = 9_990_000
    for size in ("2m", "5m"):
        rows = rows_by_dataset(facts)[f"{DEEP}-{size}"]
        figures = facts.all("Table VIII", dataset=f"{DEEP}-{size}", k="10")
        share = rows / whole
        found.append(
            f"{size}: {share:.3f} of the rows, recall over that {span((value_of(f) / share for f in figures), '.3f')}"
        )
        used += figures
    return Recomputed("; ".join(found), tuple(used))


@_check
def _sift_recall_modes(facts: Published) -> Recomputed:
    figures = facts.all("Table XV", dataset=SIFT)
    by = keyed(figures, "system", "ran_on")
    shown = ", ".join(
        f"{system} {100 * (value_of(by[system, 'cluster-3']) - value_of(by[system, 'standalone'])):+.2f} points"
        for system in ("milvus", "weaviate")
    )
    return Recomputed(f"at K=10: {shown}", tuple(figures))


@_check
def _glove_recall(facts: Published) -> Recomputed:
    by = keyed(facts.all("Table XV", dataset=GLOVE, system="weaviate"), "ran_on")
    alone, cluster = by["standalone",], by["cluster-3",]
    share = value_of(alone) / value_of(cluster)
    sizes = {dim: float(_run(facts, f"glove-{dim}-angular")["weaviate_dir_mb"]) for dim in (25, 200)}
    expected = sizes[25] + (sizes[200] - sizes[25]) * (100 - 25) / (200 - 25)
    stored = float(facts.runs[_GLOVE_PARTIAL]["weaviate_dir_mb"])
    return Recomputed(
        f"recall {value_of(alone):.4f} is {share:.1%} of the cluster's {value_of(cluster):.4f}; the store of that run, "
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
    least, most = min(map(value_of, figures)), max(map(value_of, figures))
    return Recomputed(f"{least:,.0f} to {most:,.0f} MB: {percent(least, most):+.0f} %", tuple(figures))


@_check
def _storage_ratios(facts: Published) -> Recomputed:
    raw = keyed(facts.all("Table IX", metric="raw_mb"), "dataset")
    stored = facts.all("Table IX", system="milvus", metric="storage_mb")
    times = [value_of(figure) / value_of(raw[figure.dataset,]) for figure in stored]
    return Recomputed(f"stored is {span(times, '.1f')} times raw: an expansion", (*raw.values(), *stored))


@_check
def _storage_linear(facts: Published) -> Recomputed:
    raw = keyed(facts.all("Table IX", metric="raw_mb"), "dataset")
    stored = facts.all("Table IX", system="weaviate", metric="storage_mb")
    y = [value_of(figure) for figure in stored]
    by_raw = correlation_of([value_of(raw[figure.dataset,]) for figure in stored], y) ** 2
    by_rows = correlation_of([rows_by_dataset(facts)[figure.dataset] for figure in stored], y) ** 2
    return Recomputed(f"R² is {by_raw:.2f} against raw size, {by_rows:.2f} against rows", tuple(stored))


@_check
def _storage_amortised(facts: Published) -> Recomputed:
    pairs = pairs_of(facts, "Table IX", metric="storage_mb")
    smaller = sum(value_of(w) < value_of(m) for m, w in pairs.values())
    milvus, weaviate = map(value_of, pairs[GIST])
    return Recomputed(
        f"Weaviate's is the smaller in {smaller} of {len(pairs)} rows; GIST {milvus:,.0f} and {weaviate:,.0f} MB",
        both(pairs),
    )


@_check
def _storage_deep(facts: Published) -> Recomputed:
    raw = facts.one("Table IX", dataset=f"{DEEP}-5m", metric="raw_mb")
    stored = facts.one("Table IX", dataset=f"{DEEP}-5m", system="weaviate", metric="storage_mb")
    return Recomputed(
        f"{value_of(stored):,.0f} / {value_of(raw):,.0f} = {value_of(stored) / value_of(raw):.2f}", (raw, stored)
    )


@_check
def _storage_omitted(facts: Published) -> Recomputed:
    left_out = sorted(rows_by_dataset(facts).keys() - {figure.dataset for figure in facts.all("Table IX")})
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
    names = {dim: f"glove-{dim}-angular" for dim in (25, 200)} | {960: GIST}
    p50 = {dim: facts.one("Table IV", dataset=name, system="milvus", metric="p50_ms") for dim, name in names.items()}
    low = 1e3 * (value_of(p50[200]) - value_of(p50[25])) / 175
    high = 1e3 * (value_of(p50[960]) - value_of(p50[200])) / 760
    return Recomputed(
        f"Milvus: {low:.1f} µs a dimension from 25 to 200, {high:.1f} from 200 to 960; p50 grows "
        f"{value_of(p50[960]) / value_of(p50[200]):.2f} times for {960 / 200:.1f} times the dimensions",
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
