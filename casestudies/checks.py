"""What the paper and the vendors' four documents say, made again from their numbers.

Raw values are used where they are known, printed ones elsewhere. A check is a public method of `_Paper` or `_Vendors`,
or one of these with its arguments in `CHECKS`; `findings.csv` names it. It returns a sentence. The figures that went
into it are those that it looks up, unless it names fewer of them (`rests_on`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation

import pandas as pd

from anncestry.errors import DataError
from anncestry.metrics.decide import Pair, Sample, judge_all
from anncestry.report.published import Figure, Published

TABLES = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV")
DEEP = "deep-image-96-angular"
FASHION = "fashion-mnist-784-euclidean"
GLOVE = "glove-100-angular"
SIFT = "sift-128-euclidean"
GIST = "gist-960-euclidean"

RUNS = 3
"""Runs behind each ± of the paper; it is the population's standard deviation (divided by n)."""

_CORES, _REPLICAS = "2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)"
_POLARDB = ("Cohere 768D 1M: concurrency", "Cohere 768D 10M: concurrency", "OpenAI 1536D 5M: concurrency")
_DISKANN = {
    "1M": "Dataset: 768D1M — 1 Million Vectors",
    "10M": "Dataset: 768D10M — 10 Million Vectors",
    "100M": "Dataset: 768D10M — 100 Million Vectors",
}
LOCAL = "local DRAM"
_REMOTE = ("remote NVMe-oF 1-path 1-NIC", "remote NVMe-oF 4-path 1-NIC", "remote NVMe-oF 4-path 2-NIC")
ONE_PATH, FOUR_PATHS, TWO_NICS = _REMOTE

Pairs = dict[str, tuple[Figure, Figure]]
"""By dataset: the figure of Milvus and that of Weaviate."""


@dataclass(frozen=True)
class Recomputed:
    """What a check found, in words, and the published numbers that it used."""

    text: str
    figures: tuple[Figure, ...]


def paper_sample(mean: float, std: str) -> Sample:
    """A number of the paper with its ±: the paper's deviation is the population's, tests want the sample's."""
    return Sample(mean, float(std) * math.sqrt(RUNS / (RUNS - 1)), RUNS)


def _keyed(figures: Iterable[Figure], *names: str) -> dict[tuple[str, ...], Figure]:
    """Figures by what they are of."""
    return {tuple(getattr(figure, name) for name in names): figure for figure in figures}


def _ratios(pairs: Pairs) -> dict[str, float]:
    """By dataset: Weaviate's divided by Milvus'."""
    return {dataset: weaviate.raw / milvus.raw for dataset, (milvus, weaviate) in pairs.items()}


def _span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the largest of values, as text."""
    ordered = sorted(values)
    return f"{ordered[0]:{form}} to {ordered[-1]:{form}}"


def _percent(of: float, to: float) -> float:
    """By how many percent `to` is more than `of`."""
    return 100 * (to / of - 1)


class Checks:
    """The published facts, and the figures that one check looked up in them."""

    def __init__(self, facts: Published) -> None:
        self.facts = facts
        self.used: list[Figure] = []

    def _all(self, place: str, document: str = "paper", **where: str) -> list[Figure]:
        figures = self.facts.all(place, document, **where)
        self.used += figures
        return figures

    def _one(self, place: str, document: str = "paper", **where: str) -> Figure:
        figure = self.facts.one(place, document, **where)
        self.used.append(figure)
        return figure

    def _together(self, place: str, document: str, first: str, second: str) -> list[tuple[Figure, Figure]]:
        """Two metrics of each configuration of a place."""
        columns = (self.facts.all(place, document, metric=metric) for metric in (first, second))
        rows = list(zip(*columns, strict=True))
        self.used += [figure for row in rows for figure in row]
        return [(a, b) for a, b in rows]

    def _rests_on(self, figures: Iterable[Figure]) -> None:
        """Of the figures that were looked up, only these went into the sentence."""
        self.used = list(figures)

    def _pairs(self, place: str, **where: str) -> Pairs:
        figures = _keyed(self.facts.all(place, **where), "dataset", "system")
        pairs = {
            dataset: (figures[dataset, "milvus"], figures[dataset, "weaviate"])
            for dataset in dict.fromkeys(dataset for dataset, _ in figures)
            if (dataset, "milvus") in figures and (dataset, "weaviate") in figures
        }
        self.used += [figure for pair in pairs.values() for figure in pair]
        return pairs

    def _sizes(self, metric: str) -> dict[str, float]:
        """Rows or dimensions (`dim`) of each dataset, from Table I."""
        return {figure.dataset: figure.number for figure in self.facts.all("Table I", metric=metric)}

    # The paper: loading, latency and throughput

    def load_ratios(self) -> str:
        ratios = _ratios(self._pairs("Table II", metric="load_s"))
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        return f"Table II gives {_span(ratios.values())} ({least} to {most})"

    def load_ratio_by_size(self) -> str:
        ratios = _ratios(self._pairs("Table II", metric="load_s"))
        rank = pd.Series(self._sizes("rows"))[list(ratios)].rank().corr(pd.Series(ratios).rank())
        gloves = ", ".join(f"{ratios[f'glove-{dim}-angular']:.1f}" for dim in (25, 100, 200))
        return (
            f"rank correlation of ratio and rows is {rank:.2f} over {len(ratios)} datasets; at one and the same number"
            f" of rows the three GloVe sets have {gloves}"
        )

    def glove_load(self) -> str:
        printed = self._all("Table II", dataset=GLOVE)
        return f"all {len(printed)} come from {printed[0].source_file}, the run of three nodes"

    def _changes(self, place: str, metric: str) -> str:
        by = _keyed(self._all(place, metric=metric), "system", "dataset", "ran_on")
        return "; ".join(
            f"{system} {dataset} {_percent(figure.raw, by[system, dataset, 'cluster-3'].raw):+.1f} %"
            for (system, dataset, ran_on), figure in by.items()
            if ran_on == "standalone"
        )

    def scaling_16(self) -> str:
        one, many = (self._one("Table X", dataset=SIFT, system="milvus", clients=n) for n in ("1", "16"))
        factor = many.raw / one.raw
        return f"Milvus on SIFT goes up {factor:.2f} times from one client to 16: {factor / 16:.0%} of linear"

    def scaling_8(self) -> str:
        spans = []
        for system in ("milvus", "weaviate"):
            one, eight = (_keyed(self._all("Table X", system=system, clients=n), "dataset") for n in ("1", "8"))
            spans.append(f"{system} {_span(eight[name].raw / (8 * one[name].raw) for name in one)}")
        return f"QPS of 8 clients over 8 times that of one: {'; '.join(spans)}"

    def concurrency_ratio(self) -> str:
        four, eight = (_span(_ratios(self._pairs("Table X", clients=n)).values()) for n in ("4", "8"))
        return f"Weaviate over Milvus: {four} at 4 clients, {eight} at 8"

    def gist_concurrency(self) -> str:
        ratios = {n: _ratios(self._pairs("Table X", clients=n, dataset=GIST))[GIST] for n in ("1", "4", "8", "16")}
        shown = ", ".join(f"{ratio:.2f} at {n}" for n, ratio in ratios.items())
        return f"Weaviate's QPS over Milvus' by clients: {shown}"

    def glove_tie(self) -> str:
        ((milvus, weaviate),) = self._pairs("Table X", clients="16", dataset="glove-25-angular").values()
        apart = abs(_percent(weaviate.raw, milvus.raw))
        return f"raw {milvus.raw:.2f} and {weaviate.raw:.2f}: {apart:.2f} % apart"

    def _which_is(self, place: str, lower: bool, digits: int, **where: str) -> str:
        ((milvus, weaviate),) = self._pairs(place, **where).values()
        better = "Milvus" if (milvus.raw < weaviate.raw) == lower else "Weaviate"
        return f"raw {milvus.raw:.{digits}f} and {weaviate.raw:.{digits}f}: {better} is ahead"

    def bold_deep_recall(self) -> str:
        asked = [(k, f"{DEEP}-{size}") for k in ("10", "100") for size in ("2m", "5m")]
        pairs = [self._pairs("Table VIII", k=k, dataset=dataset)[dataset] for k, dataset in asked]
        ahead = sum(milvus.raw > weaviate.raw for milvus, weaviate in pairs)
        return f"Milvus is ahead in {ahead} of {len(pairs)} cells"

    def _rounding(self, place: str) -> str:
        traced = [figure for figure in self._all(place) if figure.agrees is not None]
        wrong = [figure for figure in traced if not figure.agrees]
        self._rests_on(wrong)
        shown = "; ".join(f"{f.place} {f.dataset} {f.system} {f.value}, raw {f.source_value}" for f in wrong)
        return f"{len(wrong)} of {len(traced)} are not the raw value, rounded: {shown or 'none'}"

    def all_traced(self) -> str:
        figures = [figure for table in TABLES for figure in self._all(f"Table {table}")]
        traced = [figure for figure in figures if figure.agrees is not None]
        wrong = [figure for figure in traced if not figure.agrees]
        self._rests_on(wrong)
        spreads = [figure for figure in traced if figure.std and figure.source_std]
        same = sum(
            abs(float(f.std) - float(f.source_std)) <= 0.5 * 10.0 ** -len(f.std.partition(".")[2]) + 1e-9
            for f in spreads
        )
        return (
            f"{len(traced) - len(wrong)} of {len(traced)} printed numbers are the raw value, rounded"
            f" ({len(figures) - len(traced)} untraced); {same} of {len(spreads)} standard deviations"
        )

    def scale_by_size(self) -> str:
        shown = []
        for system in ("milvus", "weaviate"):
            two, five = (
                self._one("Table IV", dataset=f"{DEEP}-{size}", system=system, metric="p50_ms") for size in ("2m", "5m")
            )
            times = five.raw / two.raw
            shown.append(f"{system} {two.raw:.2f} to {five.raw:.2f} ms, {times:.2f} times, ± {five.std}")
        return "; ".join(shown)

    def gist_cold(self) -> str:
        ten, hundred = (self._one("Table VI", dataset=GIST, system="milvus", k=k).raw for k in ("10", "100"))
        p95, p95_of_hundred = (
            self._one(place, dataset=GIST, system="milvus", metric="p95_ms").raw for place in ("Table IV", "Table V")
        )
        return (
            f"QPS {ten:.1f} at K=10 but {hundred:.1f} at K=100; p95 {p95:.1f} and {p95_of_hundred:.1f} ms: the first"
            " workload of the run is the slow one"
        )

    def qps_from_latency(self) -> str:
        used, apart = [], []
        for k, place in (("10", "Table IV"), ("100", "Table V")):
            latency = _keyed(self._all(place, metric="p50_ms"), "dataset", "system")
            for (dataset, system), figure in _keyed(self._all("Table VI", k=k), "dataset", "system").items():
                if abs(_percent(figure.raw, 1000 / latency[dataset, system].raw)) > 20:
                    apart.append(f"{system} {dataset} K={k}")
                    used += [figure, latency[dataset, system]]
        self._rests_on(used)
        return f"1000 / p50 differs from the printed QPS by more than 20 % for {', '.join(apart)}"

    def lower_spread(self) -> str:
        shown, used = [], []
        for place in ("Table IV", "Table V"):
            for metric in ("p50_ms", "p95_ms"):
                pairs = self._pairs(place, metric=metric)
                lost = [name for name, (m, w) in pairs.items() if float(w.source_std) < float(m.source_std)]
                used += [figure for name in lost for figure in pairs[name]]
                shown.append(f"{place} {metric} {', '.join(lost) or 'nowhere'}")
        self._rests_on(used)
        return f"Weaviate's standard deviation is the lower one in: {'; '.join(shown)}"

    def significance(self) -> str:
        pairs = self._pairs("Table IV", metric="p50_ms")
        samples = [(paper_sample(m.raw, m.source_std), paper_sample(w.raw, w.source_std)) for m, w in pairs.values()]
        verdicts = judge_all([Pair(milvus, weaviate) for milvus, weaviate in samples])
        sure = [name for name, verdict in zip(pairs, verdicts, strict=True) if verdict.decided]
        claimed = [short for short, name in (("GIST", GIST), ("Deep-5M", f"{DEEP}-5m")) if name not in sure]
        among = f", {' and '.join(claimed)} among them," if claimed else ""
        return (
            f"by Welch's test of the logarithms of {RUNS} runs a side, with Holm's correction over {len(pairs)}"
            f" datasets, p50 differs for {', '.join(sure) or 'none'}; for {len(pairs) - len(sure)} of them{among}"
            " that can't be told"
        )

    def below_4_ms(self) -> str:
        dims, rows = self._sizes("dim"), self._sizes("rows")
        figures = self._all("Table IV", metric="p50_ms")
        figures = [figure for figure in figures if dims[figure.dataset] < 200 and rows[figure.dataset] < 1.5e6]
        over = [figure for figure in figures if figure.raw > 4]
        self._rests_on(over)
        shown = ", ".join(f"{f.system} {f.dataset} {f.raw:.2f} ms" for f in over)
        return f"{len(over)} of {len(figures)} are above 4 ms: {shown}"

    def qps_range(self) -> str:
        dims, rows = self._sizes("dim"), self._sizes("rows")
        small = [f for f in self._all("Table VI") if rows[f.dataset] < 1.5e6 and dims[f.dataset] < 900]
        by_k = {k: [figure for figure in small if figure.k == k] for k in ("10", "100")}
        self._rests_on(figure for figures in by_k.values() for figure in figures)
        return "; ".join(f"K={k}: {_span((figure.raw for figure in of), '.0f')}" for k, of in by_k.items())

    def filter_overheads(self) -> str:
        by = _keyed(self._all("Table VII", metric="p50_ms"), "dataset", "system", "filtered")
        names = dict.fromkeys((dataset, system) for dataset, system, _ in by)
        shown = ", ".join(f"{s} {d} {_percent(by[d, s, '0'].raw, by[d, s, '1'].raw):+.1f} %" for d, s in names)
        left_out = sorted(self._sizes("rows").keys() - {dataset for dataset, _ in names})
        return f"{shown}; the table leaves out {', '.join(left_out)}"

    def cpu_ratios(self) -> str:
        ratios = _ratios(self._pairs("Table III", metric="cpu_avg_pct"))
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if not 2 <= ratio <= 5)
        return f"ratios {_span(ratios.values())}; outside of 2 to 5: {shown}"

    # The paper: recall, storage and scale

    def recall_above_99(self) -> str:
        pairs = self._pairs("Table VIII", k="10")
        good = [name for name, pair in pairs.items() if min(figure.raw for figure in pair) > 0.99]
        return f"both are above 0.99 on {len(good)} of {len(pairs)} datasets: {', '.join(good)}"

    def gist_recall(self) -> str:
        milvus, weaviate = self._pairs("Table VIII", k="10", dataset=GIST)[GIST]
        points, relative = 100 * (milvus.raw - weaviate.raw), _percent(weaviate.raw, milvus.raw)
        return f"{points:.1f} percentage points, which is {relative:+.1f} % relative"

    def recall_gap_by_size(self) -> str:
        pairs, dims = self._pairs("Table VIII", k="10"), self._sizes("dim")
        gb = {name: rows * dims[name] * 4 / 1e9 for name, rows in self._sizes("rows").items()}
        shown = [
            f"{name} ({gb[name]:.2f} GB) {pairs[name][0].raw - pairs[name][1].raw:+.3f}"
            for name in sorted(pairs, key=gb.__getitem__)
            if name != GLOVE
        ]
        return f"Milvus minus Weaviate by raw size: {', '.join(shown)}"

    def deep_recall(self) -> str:
        shown, whole = [], 9_990_000
        for size in ("2m", "5m"):
            share = self._sizes("rows")[f"{DEEP}-{size}"] / whole
            recalls = [figure.raw / share for figure in self._all("Table VIII", dataset=f"{DEEP}-{size}", k="10")]
            shown.append(f"{size}: {share:.3f} of the rows, recall over that {_span(recalls, '.3f')}")
        return "; ".join(shown)

    def sift_recall_modes(self) -> str:
        by = _keyed(self._all("Table XV", dataset=SIFT), "system", "ran_on")
        shown = ", ".join(
            f"{system} {100 * (by[system, 'cluster-3'].raw - by[system, 'standalone'].raw):+.2f} points"
            for system in ("milvus", "weaviate")
        )
        return f"at K=10: {shown}"

    def glove_recall(self) -> str:
        alone, cluster = (
            self._one("Table XV", dataset=GLOVE, system="weaviate", ran_on=ran_on).raw
            for ran_on in ("standalone", "cluster-3")
        )
        runs = {run["dataset"]: run for run in self.facts.runs.values() if run["used_in"] != "unused"}
        low, high = (float(runs[f"glove-{dim}-angular"]["weaviate_dir_mb"]) for dim in (25, 200))
        expected = low + (high - low) * (100 - 25) / (200 - 25)
        stored = float(self.facts.runs["20260201_203505"]["weaviate_dir_mb"])
        return (
            f"recall {alone:.4f} is {alone / cluster:.1%} of the cluster's {cluster:.4f}; the store of that run,"
            f" {stored:,.0f} MB, is {stored / expected:.0%} of the {expected:,.0f} MB between those of GloVe-25 and"
            " -200: both say that most vectors are missing"
        )

    def storage_range(self) -> str:
        values = [figure.raw for figure in self._all("Table IX", system="milvus", metric="storage_mb")]
        least, most = min(values), max(values)
        return f"{least:,.0f} to {most:,.0f} MB: {_percent(least, most):+.0f} %"

    def storage_ratios(self) -> str:
        raw = _keyed(self._all("Table IX", metric="raw_mb"), "dataset")
        stored = self._all("Table IX", system="milvus", metric="storage_mb")
        return f"stored is {_span((f.raw / raw[f.dataset,].raw for f in stored), '.1f')} times raw: an expansion"

    def storage_linear(self) -> str:
        raw, rows = _keyed(self._all("Table IX", metric="raw_mb"), "dataset"), self._sizes("rows")
        stored = self._all("Table IX", system="weaviate", metric="storage_mb")
        self._rests_on(stored)
        y = [figure.raw for figure in stored]
        by_raw = correlation([raw[figure.dataset,].raw for figure in stored], y) ** 2
        by_rows = correlation([rows[figure.dataset] for figure in stored], y) ** 2
        return f"R² is {by_raw:.2f} against raw size, {by_rows:.2f} against rows"

    def storage_amortised(self) -> str:
        pairs = self._pairs("Table IX", metric="storage_mb")
        smaller = sum(weaviate.raw < milvus.raw for milvus, weaviate in pairs.values())
        milvus, weaviate = pairs[GIST]
        gist = f"GIST {milvus.raw:,.0f} and {weaviate.raw:,.0f} MB"
        return f"Weaviate's is the smaller in {smaller} of {len(pairs)} rows; {gist}"

    def storage_deep(self) -> str:
        raw = self._one("Table IX", dataset=f"{DEEP}-5m", metric="raw_mb").raw
        stored = self._one("Table IX", dataset=f"{DEEP}-5m", system="weaviate", metric="storage_mb").raw
        return f"{stored:,.0f} / {raw:,.0f} = {stored / raw:.2f}"

    def storage_omitted(self) -> str:
        left_out = sorted(self._sizes("rows").keys() - {figure.dataset for figure in self.facts.all("Table IX")})
        runs = [run for run in self.facts.runs.values() if run["dataset"] in left_out]
        shown = ", ".join(f"{run['weaviate_dir_mb']} MB ({run['topology']})" for run in runs)
        return f"left out: {', '.join(left_out)}; its runs recorded {shown} for Weaviate"

    def milvus_stopped(self) -> str:
        runs = dict(self.facts.runs)
        one, another = (runs.pop(name) for name in ("20260201_223604", "20260201_230242"))
        (other,) = {run["etcd_dir_mb"] for run in runs.values() if run["etcd_dir_mb"]}
        less = (float(other) - float(one["etcd_dir_mb"])) * 2**20
        return (
            f"both cluster runs record {one['milvus_dir_mb']} and {another['milvus_dir_mb']} MB for Milvus and"
            f" {one['etcd_dir_mb']} MB for etcd, all other runs {other} MB: {less / 1e6:.1f} million bytes less,"
            " one log segment that a stopped etcd gives up"
        )

    def dimension_slopes(self) -> str:
        low, middle, high = (
            self._one("Table IV", dataset=name, system="milvus", metric="p50_ms").raw
            for name in ("glove-25-angular", "glove-200-angular", GIST)
        )
        slopes = 1e3 * (middle - low) / 175, 1e3 * (high - middle) / 760
        return (
            f"Milvus: {slopes[0]:.1f} µs a dimension from 25 to 200, {slopes[1]:.1f} from 200 to 960; p50 grows"
            f" {high / middle:.2f} times for {960 / 200:.1f} times the dimensions"
        )

    def cluster_as_standalone(self) -> str:
        figures = [figure for table in TABLES for figure in self._all(f"Table {table}")]
        figures = [f for f in figures if f.ran_on == "cluster-3" and f.topology in ("standalone", "")]
        self._rests_on(figures)
        places = ", ".join(dict.fromkeys(figure.place.removeprefix("Table ") for figure in figures))
        return f"{len(figures)} numbers of GloVe-100 in Tables {places} come from the cluster's run"

    # The vendors' documents

    def milvus22_gains(self) -> str:
        shown = []
        for place in ("cluster", "standalone"):
            old, new = (
                self._one(f"2.2.0 vs 2.1.0: {place}", "milvus-2.2", version=version, metric="qps").number
                for version in ("2.1.0", "2.2.0")
            )
            shown.append(f"{place} {_percent(old, new):+.1f} %")
        return "; ".join(shown)

    def _scale(self, place: str, sizes: Sequence[float]) -> str:
        rates = [figure.number for figure in self._all(place, "milvus-2.2", metric="qps")]
        factor, ideal = rates[-1] / rates[0], sizes[-1] / sizes[0]
        each = ", ".join(f"{rate / size:,.0f}" for rate, size in zip(rates, sizes, strict=True))
        return f"{factor:.2f} times for {ideal:.0f} times ({factor / ideal:.0%}); per unit {each}"

    def milvus22_clients(self) -> str:
        figures = [f for place in (_CORES, _REPLICAS) for f in self._all(place, "milvus-2.2", metric="qps")]
        return f"clients by row: {', '.join(figure.clients for figure in figures)}"

    def milvus22_little(self) -> str:
        rows = [row for place in (_CORES, _REPLICAS) for row in self._together(place, "milvus-2.2", "qps", "p50_ms")]
        shown = [f"{1e3 * int(rate.clients) / rate.number:.0f}/{median.number:.0f}" for rate, median in rows]
        return f"clients / QPS against the printed median, ms: {', '.join(dict.fromkeys(shown))}"

    def grpc_ingestion(self) -> str:
        rest, grpc = (figure.number for figure in self._all("text Data ingestion", "weaviate-grpc", metric="load_s"))
        saved = (rest - grpc) * 100 / 3600
        return f"{grpc:.0f} / {rest:.0f} s = {grpc / rest:.3f}; for 100 times the objects {saved:.1f} h are saved"

    def grpc_throughput(self) -> str:
        less = [figure.number for figure in self._all("text Queries", "weaviate-grpc", metric="change_pct")]
        gain = self._one("text Queries", "weaviate-grpc", metric="ratio").number
        times = ", ".join(f"{-change:.0f} % less time is {1 / (1 + change / 100):.2f} times" for change in less)
        return f"{times}; {gain} times is {100 * (1 - 1 / gain):.1f} % less"

    def polardb_little(self) -> str:
        rows = [row for place in _POLARDB for row in self._together(place, "polardb", "qps", "avg_ms")]
        worst = max(abs(_percent(mean.number, 1e3 * int(rate.clients) / rate.number)) for rate, mean in rows)
        return f"clients / QPS is the printed mean within {worst:.2f} % in {len(rows)} rows"

    def polardb_scaling(self) -> str:
        shown = []
        for place in _POLARDB:
            rates = self._all(place, "polardb", metric="qps")
            last = _percent(rates[-2].number, rates[-1].number)
            times = rates[-1].number / rates[0].number
            shown.append(f"{rates[0].dataset} {times:.2f} times, {last:+.1f} % in the last step")
        return f"from 20 to 100 clients: {'; '.join(shown)}"

    def polardb_peak(self) -> str:
        rates = [self._all(place, "polardb", metric="qps") for place in _POLARDB]
        peaks = [max(of_place, key=lambda figure: figure.number) for of_place in rates]
        self._rests_on(peaks)
        levels = ", ".join(f"{figure.dataset} at {figure.clients}" for figure in peaks)
        return f"the highest is that of the most clients tried: {levels}"

    def polardb_summary(self) -> str:
        again = self._all("Summary and comparison", "polardb")
        elsewhere = {
            (f.dataset, f.metric, f.number)
            for f in self.facts.figures
            if f.document == "polardb" and f.place != "Summary and comparison"
        }
        same = sum((f.dataset, f.metric, f.number) in elsewhere for f in again)
        return f"{same} of {len(again)} cells of the summary stand elsewhere with the same value"

    def _of_diskann(self, size: str, topology: str, metric: str) -> Figure:
        return self._one(_DISKANN[size], "diskann", topology=topology, metric=metric)

    def _diskann_change(self, a: str, b: str, sizes: Iterable[str], metric: str = "qps") -> str:
        shown = []
        for size in sizes:
            one, two = (self._of_diskann(size, topology, metric).number for topology in (a, b))
            shown.append(f"{size} {one:g} to {two:g}: {_percent(one, two):+.2f} %")
        return ", ".join(shown)

    def diskann_paths(self) -> str:
        one, four = (self._of_diskann("100M", topology, "p95_ms").number for topology in (ONE_PATH, FOUR_PATHS))
        return f"{one:,g} / {four:g} = {one / four:.1f}"

    def diskann_recall_100m(self) -> str:
        table = self._of_diskann("100M", LOCAL, "recall_by_id")
        text = self._one("text Observations", "diskann", metric="recall_by_id", topology=LOCAL)
        remote = [self._of_diskann("100M", t, "recall_by_id").number for t in _REMOTE]
        return (
            f"HNSW is {table.value} in the table, {text.value} in the text; DiskANN {_span(remote, '.4f')}, above the"
            " one and below the other"
        )

    def diskann_recalls_10m(self) -> str:
        figures = [self._of_diskann("10M", t, "recall_by_id") for t in _REMOTE]
        return ", ".join(f"{figure.topology} {figure.value}" for figure in figures)

    def diskann_drop(self) -> str:
        rates = [self._of_diskann(size, LOCAL, "qps").number for size in _DISKANN]
        steps = " and ".join(f"{a / b:.1f}" for a, b in pairwise(rates))
        return f"QPS of HNSW falls {steps} times for ten times the rows each"

    def diskann_memory(self) -> str:
        raw, links = 100e6 * 768 * 4, 100e6 * 2 * 30 * 4
        return f"{raw / 1e9:.0f} GB of vectors and {links / 1e9:.0f} GB of links, {(raw + links) / 1e9:.0f} GB"

    def diskann_same_tail(self) -> str:
        one, four = (
            "/".join(self._of_diskann("1M", topology, metric).value for metric in ("p95_ms", "p99_ms"))
            for topology in (ONE_PATH, FOUR_PATHS)
        )
        slow, fast = (self._of_diskann("1M", topology, "qps").number for topology in (ONE_PATH, FOUR_PATHS))
        return f"p95/p99 {one} and {four} ms, while QPS is {fast / slow:.2f} times"


CHECKS: dict[str, Callable[[Checks], str]] = {
    **{name: check for name, check in vars(Checks).items() if not name.startswith("_")},
    "cluster_latency": lambda paper: paper._changes("Table XII", "p50_ms"),
    "cluster_qps": lambda paper: paper._changes("Table XIV", "qps"),
    "bold_gist_1": lambda paper: paper._which_is("Table X", False, 2, dataset=GIST, clients="1"),
    "bold_nytimes_p95": lambda paper: paper._which_is(
        "Table IV", True, 3, dataset="nytimes-256-angular", metric="p95_ms"
    ),
    "bold_fashion_qps": lambda paper: paper._which_is("Table VI", False, 1, dataset=FASHION, k="100"),
    "bold_fashion_recall": lambda paper: paper._which_is("Table VIII", False, 4, dataset=FASHION, k="10"),
    "rounding_vii": lambda paper: paper._rounding("Table VII"),
    "rounding_x": lambda paper: paper._rounding("Table X"),
    "rounding_xii": lambda paper: paper._rounding("Table XII"),
    "rounding_xiii": lambda paper: paper._rounding("Table XIII"),
    "milvus22_cores": lambda vendor: vendor._scale(_CORES, (8, 12, 16, 32)),
    "milvus22_replicas": lambda vendor: vendor._scale(_REPLICAS, (1, 2, 4, 8)),
    "diskann_1m": lambda vendor: vendor._diskann_change(LOCAL, FOUR_PATHS, ["1M"]),
    "diskann_10m": lambda vendor: vendor._diskann_change(LOCAL, FOUR_PATHS, ["10M"]),
    "diskann_100m": lambda vendor: vendor._diskann_change(LOCAL, FOUR_PATHS, ["100M"]),
    "diskann_p95": lambda vendor: vendor._diskann_change(LOCAL, FOUR_PATHS, ["1M", "10M"], "p95_ms"),
    "diskann_recall_10m": lambda vendor: vendor._diskann_change(LOCAL, FOUR_PATHS, ["10M"], "recall_by_id"),
    "diskann_nics": lambda vendor: vendor._diskann_change(FOUR_PATHS, TWO_NICS, list(_DISKANN)),
}
"""All checks, by the name that `findings.csv` calls them."""


def check(name: str, facts: Published) -> Recomputed:
    """What a check gives. KeyError for an unknown one."""
    checks = Checks(facts)
    text = CHECKS[name](checks)
    return Recomputed(text, tuple(dict.fromkeys(checks.used)))


def recomputed(facts: Published) -> dict[str, Recomputed]:
    """By finding: what its checks give, for the findings that have some. DataError for an unknown check."""
    found: dict[str, Recomputed] = {}
    for finding in facts.findings:
        names = finding["check"].split()
        if unknown := [name for name in names if name not in CHECKS]:
            raise DataError(f"{facts.folder / 'findings.csv'}: {finding['id']}: unknown check {unknown[0]!r}")
        if names:
            parts = [check(name, facts) for name in names]
            figures = dict.fromkeys(figure for part in parts for figure in part.figures)
            found[finding["id"]] = Recomputed("; ".join(part.text for part in parts), tuple(figures))
    return found
