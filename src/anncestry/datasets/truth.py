"""The truth stage: exact nearest neighbours, for any metric, filter, depth and subset of rows.

Every float32 search rounds, so its list is not yet the truth. Here it only nominates candidates:

1. faiss nominates `depth` + 16 rows a query, while the base streams by.
2. The candidates' distances are computed anew, exactly (`distance.pair_distances`), and sorted by (distance, id).
3. A query is proven when faiss' worst nominee, less the largest error that float32 arithmetic can make, still lies
   beyond the exact distance at `depth`: then no row outside the list can belong into it, nor tie with its end.
4. Queries that can't be proven so (wide ties, rows very close together) are answered by a second scan in float64,
   which applies the same proof with an error so small that it keeps every row that could matter.

The result is the same on every machine, whatever BLAS or CPU nominated.

The base may be cut into shards: each searches its own rows. A shard's list is exact, so every row of the whole list is
in the list of its own shard, and merging by (distance, id) gives the same bytes however the base was cut. Shards lie in
files of their own: a cluster spreads them, and a run that was interrupted has only the missing ones to make.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from anncestry.datasets import metadata
from anncestry.datasets.distance import Bools, Floats, Ids, check_metric, isin_rows, pair_distances, squared_lengths
from anncestry.datasets.payload import NO_PAYLOAD, Payload, open_payload
from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress
from anncestry.provenance.records import identity, read_record, replacing, set_aside, verify_outputs, write_record

Floats32 = NDArray[np.float32]

TIE_RANKS = (10, 100)
_EXTRA = 16
_CHUNK_BYTES = 64 << 20
_TAKE_BYTES = 1 << 20  # each row may bring the pages around it into memory
_SCAN_BYTES = 16 << 20  # of a float64 block of distances
_LENGTHS_BLOCK = 4096
_FLOAT32_SAFE = float(np.finfo(np.float32).max) / 4  # squares beyond may overflow, and then faiss' order means nothing

# Agreement with a source's own truth: its distances were computed in float32, some by ‖q‖² + ‖x‖² − 2qx.
_SHIPPED_RELATIVE = 1e-5
_SHIPPED_OF_SCALE = 2.0**-20

# What the readers of zip, npy and JSON raise on damaged bytes.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, KeyError, TypeError, SyntaxError),
    *(NotImplementedError, RuntimeError, MemoryError, OverflowError, TokenError),
)


@dataclass(frozen=True)
class _Base:
    """The rows that a search may return: a file of vectors, the filter's verdict on each row, and a range of rows."""

    path: Path
    passes: Bools
    rows: range

    @property
    def count(self) -> int:
        """How many rows may be returned."""
        return int(self.passes[self.rows.start : self.rows.stop].sum())

    def _mapped(self) -> Floats32:
        """The whole file, mapped anew for each use: what stays mapped stays in memory, as far as there is room."""
        mapped: Floats32 = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return mapped

    def chunks(self, max_bytes: int) -> Iterator[tuple[Ids, Floats32]]:
        """Yield (ids, vectors) of the rows that pass."""
        step = max(1, max_bytes // (4 * self._mapped().shape[1]))
        for start in range(self.rows.start, self.rows.stop, step):
            stop = min(start + step, self.rows.stop)
            passes = self.passes[start:stop]
            if passes.any():
                mapped = self._mapped()[start:stop]
                # All of them are read where they lie: a copy would cost as much as reading the file does.
                chunk = np.asarray(mapped if passes.all() else mapped[passes])
                del mapped
                yield np.flatnonzero(passes) + start, chunk
                del chunk

    def take(self, ids: Ids) -> Iterator[tuple[slice, Floats32]]:
        """Yield the vectors of `ids` (n,), ascending, part by part: which of the ids, and their vectors.

        Only the pages that they lie on are read, so that a few rows of a large file cost little.
        """
        step = max(1, _TAKE_BYTES // (4 * self._mapped().shape[1]))
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            yield part, np.asarray(self._mapped()[ids[part]])


@dataclass(frozen=True)
class Neighbors:
    """Exact neighbours: `ids` int64 (nq, depth), -1 pads; `distances` float64 (nq, depth), +inf pads.

    `next_distances` float64 (nq,) tells whether the list ends within a tie: it equals the last distance if the row at
    rank depth + 1 is as far, and is larger otherwise (+inf where no row is left). `scanned_queries` took step 4.
    """

    ids: Ids
    distances: Floats
    next_distances: Floats
    scanned_queries: int

    def put(self, queries: Ids, part: Neighbors) -> None:
        """Write the lists of some of the queries, whose numbers are `queries` (n,)."""
        self.ids[queries], self.distances[queries] = part.ids, part.distances
        self.next_distances[queries] = part.next_distances

    def tied(self, rank: int) -> Bools:
        """Whether the rows at ranks `rank` and `rank` + 1 (counted from 1) are equally far, bool (nq,)."""
        here = self.distances[:, rank - 1]
        after = self.next_distances if rank == self.distances.shape[1] else self.distances[:, rank]
        tied: Bools = np.isfinite(here) & (here == after)
        return tied


@dataclass(frozen=True)
class Problem:
    """What is asked: queries with their filters, among which rows, by which metric, and how deep."""

    files: Mapping[str, Path]
    metric: str
    depth: int
    rows: int
    queries: Floats32
    asked: metadata.Asked
    columns: metadata.Columns
    filtered: Sequence[Mapping[str, Any]] = ()
    """The filters under which the source states neighbours, too."""
    payload: Payload = NO_PAYLOAD
    own: bool = False
    """Whether each query is asked under its own conditions."""
    query_rows: Ids | None = None
    """Which of the dataset's queries these are, ascending; None for all of them."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], vectors_dir: Path, part: bool = False) -> Problem:
        """Read it; `spec` holds `metric`, `filter` (see metadata.matches) and `depth`, the neighbours a query.
        With `queries` and `seed`, only so many queries are asked (see `rows_asked`).

        For a `part` of the truth the base is not hashed: each would read all of it. Who gathers the parts does.

        Raises DataError if depth exceeds the number of rows, or if the vectors were made for another metric.
        """
        metric, depth = spec["metric"], spec["depth"]
        check_metric(metric)
        metadata.check_filter(spec.get("filter"))
        if depth < 1:
            raise ConfigError(f"depth: must be at least 1, not {depth}")
        vectors_record = vectors_dir / "record.json"
        vectors = read_record(vectors_record, stage="normalize")
        if vectors["spec"]["metric"] != metric:
            raise DataError(f"{vectors_record}: the vectors are for {vectors['spec']['metric']}, not for {metric}")
        if depth > vectors["rows"]:
            raise DataError(f"{vectors_record}: {vectors['rows']} rows, fewer than the depth of {depth}")
        files = verify_outputs(vectors_record, vectors, but=("base",) if part else ())
        columns = np.load(files["category"]), np.load(files["price"]), np.load(files["region"])
        every: Floats32 = np.load(files["queries"], mmap_mode="r")
        rows = rows_asked(len(every), spec["queries"], spec["seed"]) if "queries" in spec else None
        chosen = slice(None) if rows is None else rows
        payload = open_payload(vectors_dir) if "payload" in files else NO_PAYLOAD
        filter = spec.get("filter")
        own = filter is not None and filter["field"] == "payload"
        if own and "payload" not in files:
            raise DataError(f"{vectors_record}: has no conditions, so its queries can't be filtered by them")
        asked = metadata.resolve(filter, columns[1], np.load(files["query_region"])[chosen], payload, rows)
        filtered = [one["filter"] for one in vectors.get("shipped_filtered", ())]
        queries = np.array(every[chosen])
        return cls(files, metric, depth, vectors["rows"], queries, asked, columns, filtered, payload, own, rows)

    def published(self) -> Path | None:
        """The file of the source's own truth for this filter, where there is one."""
        if self.own:
            return self.files.get("shipped_conditioned")
        if len(self.asked.distinct) != 1:
            return None
        if self.asked.distinct[0] is None:
            return self.files.get("shipped_ids")
        none = np.zeros(0, np.int64)
        for number, filter in enumerate(self.filtered):
            if metadata.resolve(filter, self.columns[1], none).distinct == self.asked.distinct:
                return self.files[f"shipped_filtered_{number}"]
        return None

    def solve(self, rows: range, label: str) -> tuple[Neighbors, Ids]:
        """The neighbours among `rows`, and how many of those pass the filter of each query, int64 (nq,).

        The base is read once for every distinct filter.
        """
        count, filters = len(self.queries), self.asked.distinct
        shape = (count, self.depth)
        found = Neighbors(np.full(shape, -1), np.full(shape, np.inf), np.full(count, np.inf), 0)
        matching = np.zeros(count, dtype=np.int64)
        scanned, one = 0, len(filters) == 1
        with nullcontext() if one else Progress(label, count, "queries") as progress:
            for number, filter in enumerate(filters):
                passes = metadata.matches(filter, *self.columns, payload=self.payload)
                which = np.flatnonzero(self.asked.of == number)
                name = label if one else f"{label} · filter {number + 1} of {len(filters)}"
                asked = (self.files["base"], self.queries[which], self.metric, self.depth, passes)
                part = nearest(*asked, label=name, rows=rows, brief=not one)
                found.put(which, part)
                matching[which] = passes[rows.start : rows.stop].sum()
                scanned += part.scanned_queries
                if progress is not None:
                    progress.add(len(which))
        return replace(found, scanned_queries=scanned), matching


def rows_asked(queries: int, count: int, seed: int) -> Ids:
    """The rows of a dataset's `queries` that a workload of `count` queries asks (`vectors.choose`), (count,).

    Ascending. One seeded order for every count, so that the rows of a larger one hold those of each smaller one.
    """
    rows: Ids = np.sort(np.random.RandomState(seed).permutation(queries)[:count])
    return rows


def run(
    spec: Mapping[str, Any], vectors_dir: Path, out_dir: Path, key: str, gathered: tuple[Neighbors, Ids] | None = None
) -> dict[str, Any]:
    """Write ids.npy (int64), distances.npy (float64) and record.json to `out_dir`; returns the record.

    Where only some queries are asked, queries.npy (int64) says which: row i of the others belongs to its query i.
    `spec` is that of `Problem.of`, with its errors; `gathered` is what shards found, if they did (see `gather`).
    Distances are float64: rounded to float32, rows a hair apart would look tied, and recall by distance compares with
    exact distances. Raises DataError if a truth that came with the source disagrees.
    """
    (out_dir / "record.json").unlink(missing_ok=True)
    problem = Problem.of(spec, vectors_dir)
    found, matching = gathered or problem.solve(range(problem.rows), f"truth {vectors_dir.name}")
    depth, theirs = problem.depth, problem.published()
    shipped = None if theirs is None else _compare_shipped(problem, theirs, found)
    made = {"ids": found.ids, "distances": found.distances, **({"matching": matching} if problem.own else {})}
    if problem.query_rows is not None:
        made["queries"] = problem.query_rows
    outputs = {name: out_dir / f"{name}.npy" for name in made}
    for path, array in zip(outputs.values(), made.values(), strict=True):
        with replacing(path) as temporary:
            np.save(temporary, array)
    # How narrow the queries' own filters are; `matching.npy` has it of each query.
    ranks = {"min": 0.0, "p50": 0.5, "max": 1.0}.items()
    selectivities = {f"selectivity_{name}": float(np.quantile(matching / problem.rows, at)) for name, at in ranks}
    body = {
        "rows": problem.rows,
        "matches": int(matching[0]) if len(set(matching.tolist())) == 1 else float(matching.mean()),
        "filters": len(problem.asked.distinct),
        "selectivity": float(matching.mean()) / problem.rows,
        **(selectivities if problem.own else {}),
        "ties": {str(rank): int(found.tied(rank).sum()) for rank in sorted({*TIE_RANKS, depth}) if rank <= depth},
        "scanned_queries": found.scanned_queries,
        "shipped": shipped,
    }
    return write_record(
        out_dir / "record.json",
        stage="truth",
        key=key,
        spec=spec,
        body=body,
        inputs={"vectors": vectors_dir / "record.json"},  # which holds the digests of the arrays, checked above
        outputs=outputs,
    )


def nearest(
    base: Path,
    queries: Floats32,
    metric: str,
    depth: int,
    passes: Bools,
    label: str = "truth",
    chunk_bytes: int = _CHUNK_BYTES,
    rows: range | None = None,
    brief: bool = False,
) -> Neighbors:
    """Find the `depth` exact nearest of the rows that pass, for each query.

    `base` is an npy file of float32 (rows, dim), read by chunks of `chunk_bytes`; `queries` float32 (nq, dim);
    `passes` bool (rows,); with `rows`, only those count. Equal distances are ordered by id. Uses all cores that this
    process may run on. `brief` says nothing of a search that is over soon.
    """
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    searched = _Base(base, passes, range(len(passes)) if rows is None else rows)
    lengths = _lengths(queries)
    progress = Progress(label, searched.count, "rows")
    with nullcontext() if brief else progress:
        nominated, beyond, longest = _nominate(searched, queries, metric, depth + _EXTRA, chunk_bytes, progress)
        found = _take(nominated, _exact(searched, queries, metric, nominated), depth)
        error = _search_error(metric, lengths, longest, queries.shape[1], np.float32)
        proven = (beyond - error > found.distances[:, -1]) | (searched.count <= depth + _EXTRA)
        proven &= (lengths + longest) ** 2 < _FLOAT32_SAFE
        open_queries = np.flatnonzero(~proven)
        if len(open_queries):
            bound = _search_error(metric, lengths[open_queries], longest, queries.shape[1], np.float64)
            scan = _scan(searched, queries[open_queries], metric, depth, bound, chunk_bytes, progress)
            found.put(open_queries, scan)
    return Neighbors(found.ids, found.distances, found.next_distances, scanned_queries=len(open_queries))


# Step 1: nominees


def _nominate(
    base: _Base, queries: Floats32, metric: str, count: int, chunk_bytes: int, progress: Progress
) -> tuple[Ids, Floats, float]:
    """Search with faiss, in float32.

    Returns the nominees' ids (nq, ≤ count), -1 where there is none; for each query a bound below faiss' distances of
    all rows that are not nominated; and the length of the longest row.
    """
    ids = np.empty((len(queries), 0), dtype=np.int64)
    distances = np.empty((len(queries), 0), dtype=np.float32)
    beyond = np.full(len(queries), np.inf)
    longest = 0.0
    for chunk_ids, chunk in base.chunks(chunk_bytes):
        longest = max(longest, _longest(chunk))
        found, positions = _faiss_search(queries, chunk, metric, min(count, len(chunk)))
        if len(chunk) > count:
            beyond = np.minimum(beyond, found.max(axis=1))
        distances = np.concatenate([distances, found], axis=1)
        ids = np.concatenate([ids, np.where(positions >= 0, chunk_ids[positions], -1)], axis=1)
        if ids.shape[1] > count:
            order = np.argpartition(distances, count - 1, axis=1)
            beyond = np.minimum(beyond, np.take_along_axis(distances, order[:, count:], axis=1).min(axis=1))
            distances = np.take_along_axis(distances, order[:, :count], axis=1)
            ids = np.take_along_axis(ids, order[:, :count], axis=1)
        progress.add(len(chunk))
    return ids, beyond, longest


def _faiss_search(queries: Floats32, chunk: Floats32, metric: str, count: int) -> tuple[Floats32, Ids]:
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    found, positions = faiss.knn(queries, chunk, count, metric=kind)
    return (found if metric == "l2" else np.float32(1) - found), positions


def _search_error(metric: str, lengths: Floats, longest: float, dim: int, precision: type[np.floating[Any]]) -> Floats:
    """The most by which a distance computed by inner products in `precision` can be wrong, for each query.

    A sum of n products, in any order and with or without fused operations, is off by at most γ(n)·Σ|terms| with
    γ(n) = n·u / (1 − n·u), u being half the machine epsilon (Higham, Accuracy and Stability of Numerical Algorithms,
    §3.1); Σ|q_i·x_i| ≤ ‖q‖·‖x‖. For l2 the norms and the final additions are rounded likewise. The last term is for
    products below the smallest normal number.
    """
    limits = np.finfo(precision)
    roundings = (dim + 8) * float(limits.eps) / 2
    gamma = roundings / (1 - roundings)
    scale = (lengths + longest) ** 2 if metric == "l2" else lengths * longest + 1
    bound: Floats = gamma * scale + 4 * dim * float(limits.tiny)
    return bound


def _longest(vectors: Floats32) -> float:
    """A bound above the length of every row, as near as it can be told in float32, in which faiss sums the squares.

    See `_search_error` for how wrong that can be. Where a square overflows, it is the length of the longest row.
    """
    squares = np.empty(len(vectors), dtype=np.float32)
    rows, dim = vectors.shape
    # The stubs know the SWIG module by halves.
    faiss.fvec_norms_L2sqr(faiss.swig_ptr(squares), faiss.swig_ptr(vectors), dim, rows)  # type: ignore[attr-defined]
    if not np.isfinite(squares).all():
        return float(_lengths(vectors).max())
    limits = np.finfo(np.float32)
    roundings = (dim + 8) * float(limits.eps) / 2
    return float(np.sqrt(float(squares.max()) / (1 - 2 * roundings) + 4 * dim * float(limits.tiny)))


def _lengths(vectors: Floats32) -> Floats:
    blocks = [squared_lengths(vectors[i : i + _LENGTHS_BLOCK]) for i in range(0, len(vectors), _LENGTHS_BLOCK)]
    lengths: Floats = np.sqrt(np.concatenate(blocks))
    return lengths


# Step 2: exact distances


def _exact(base: _Base, queries: Floats32, metric: str, nominated: Ids) -> Floats:
    """Exact distances of nominees (nq, n), +inf for -1. Reads the rows that are nominated, in the file's order."""
    distances = np.full(nominated.shape, np.inf)
    flat_ids, flat_distances = nominated.ravel(), distances.ravel()  # views: both arrays are contiguous
    order = np.argsort(flat_ids, kind="stable")
    order = order[np.searchsorted(flat_ids[order], 0) :]
    wanted, starts = np.unique(flat_ids[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for part, vectors in base.take(wanted):
        pairs = order[starts[part][0] : ends[part][-1]]
        positions = np.repeat(np.arange(len(vectors)), ends[part] - starts[part])
        flat_distances[pairs] = pair_distances(vectors, queries, positions, pairs // nominated.shape[1], metric)
    return distances


def _take(ids: Ids, distances: Floats, depth: int) -> Neighbors:
    """The `depth` best of unordered candidates (nq, n), by (distance, id), padded where there are fewer."""
    width = ids.shape[1]
    if width <= depth:
        pad = depth + 1 - width
        ids = np.pad(ids, ((0, 0), (0, pad)), constant_values=-1)
        distances = np.pad(distances, ((0, 0), (0, pad)), constant_values=np.inf)
    order = np.lexsort((ids, distances), axis=1)[:, : depth + 1]
    ids = np.take_along_axis(ids, order, axis=1)
    distances = np.take_along_axis(distances, order, axis=1)
    return Neighbors(ids[:, :depth].copy(), distances[:, :depth].copy(), distances[:, depth].copy(), 0)


# Step 4: the second scan


def _scan(
    base: _Base, queries: Floats32, metric: str, depth: int, error: Floats, chunk_bytes: int, progress: Progress
) -> Neighbors:
    """Answer queries by float64 distances of all rows; whatever could reach the list is computed exactly.

    A row is looked at unless it lies beyond the distance at rank depth + 1 so far, or beyond that within its block.
    Each float64 distance is off by `error` at most, and so is each exact one: comparing one with the other takes a
    margin of twice the error, comparing two float64 distances by their exact ones takes four times.
    """
    progress.total = (progress.total or 0) + base.count
    wide = queries.astype(np.float64)
    squares = squared_lengths(queries)
    keep = depth + 1
    best_ids = np.full((len(queries), keep), -1, dtype=np.int64)
    best = np.full((len(queries), keep), np.inf)
    for chunk_ids, chunk in base.chunks(min(chunk_bytes, _SCAN_BYTES)):
        rows64 = chunk.astype(np.float64)
        row_squares = squared_lengths(chunk)
        step = max(1, _SCAN_BYTES // (8 * len(chunk)))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            near = wide[block] @ rows64.T
            near = squares[block, np.newaxis] + row_squares - 2 * near if metric == "l2" else 1 - near
            bound = best[block, -1] + 2 * error[block]
            if len(chunk) >= keep:
                here = np.partition(near, keep - 1, axis=1)[:, keep - 1]
                bound = np.minimum(bound, here + 4 * error[block])
            which, positions = np.nonzero(near <= bound[:, np.newaxis])
            exact = pair_distances(chunk, queries, positions, which + start, metric)
            best_ids[block], best[block] = _merged(best_ids[block], best[block], chunk_ids[positions], exact, which)
        progress.add(len(chunk))
    return Neighbors(best_ids[:, :depth], best[:, :depth], best[:, depth], 0)


def _merged(best_ids: Ids, best: Floats, ids: Ids, distances: Floats, which: Ids) -> tuple[Ids, Floats]:
    """The best lists (nq, keep), now also of rows `ids` (n,), each at its distance from the query `which` (n,)."""
    count, keep = best.shape
    every = np.concatenate([np.repeat(np.arange(count), keep), which])
    ids, distances = np.concatenate([best_ids.ravel(), ids]), np.concatenate([best.ravel(), distances])
    order = np.lexsort((ids, distances, every))
    first = np.searchsorted(every[order], np.arange(count))
    chosen = order[first[:, np.newaxis] + np.arange(keep)]
    return ids[chosen], distances[chosen]


# Shards


def rows_of(part: int, parts: int, rows: int) -> range:
    """The rows of a shard, `part` counted from 1; shards differ by one row at most."""
    return range(rows * (part - 1) // parts, rows * part // parts)


def run_part(spec: Mapping[str, Any], key: str, vectors_dir: Path, out: Path, part: int, parts: int) -> None:
    """Write the exact neighbours among a shard's rows to `out` (npz); `spec` and `key` are those of the truth."""
    problem = Problem.of(spec, vectors_dir, part=True)
    found, matching = problem.solve(rows_of(part, parts, problem.rows), f"truth {vectors_dir.name} · {part}/{parts}")
    of = identity(read_record(vectors_dir / "record.json"))
    about = json.dumps({"key": key, "vectors": of, "part": part, "parts": parts, "scanned": found.scanned_queries})
    with replacing(out) as temporary, open(temporary, "wb") as file:
        np.savez(
            file,
            ids=found.ids,
            distances=found.distances,
            next_distances=found.next_distances,
            matching=matching,
            about=np.array(about),
        )


def gather(paths: Sequence[Path], key: str, vectors: str) -> tuple[Neighbors, Ids]:
    """The neighbours in the whole base from all its shards, in order, and how many rows pass each query's filter.

    DataError for a file that is damaged, or is not that shard of the truth `key`, or of other `vectors` (the identity
    of their record). One shard is held at a time.
    """
    whole, matching = _read_part(paths[0], key, vectors, 1, len(paths))
    for number, path in enumerate(paths[1:], start=2):
        part, passing = _read_part(path, key, vectors, number, len(paths))
        whole, matching = merge(whole, part), matching + passing
    return whole, matching


def merge(one: Neighbors, other: Neighbors) -> Neighbors:
    """The neighbours in the union of two disjoint sets of rows, of the same queries and depth."""
    ids = np.concatenate([one.ids, other.ids], axis=1)
    best = _take(ids, np.concatenate([one.distances, other.distances], axis=1), one.ids.shape[1])
    # The row at rank depth + 1 is among both lists, or is the first that one of them had to leave out.
    after = np.minimum(best.next_distances, np.minimum(one.next_distances, other.next_distances))
    return Neighbors(best.ids, best.distances, after, one.scanned_queries + other.scanned_queries)


def _read_part(path: Path, key: str, vectors: str, part: int, parts: int) -> tuple[Neighbors, Ids]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.zip.infolist()):
                raise ValueError("it is compressed, which none of ours is")
            about = json.loads(str(file["about"]))
            found = Neighbors(file["ids"], file["distances"], file["next_distances"], int(about["scanned"]))
            matching = file["matching"]
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except _DAMAGED as error:
        set_aside(path)
        raise DataError(f"{path}: damaged ({error}): set aside; the next run makes it again") from None
    stated = f"part {about['part']} of {about['parts']} of truth {about['key']}"
    if stated != f"part {part} of {parts} of truth {key}":
        set_aside(path)
        raise DataError(f"{path}: {stated}, not {part} of {parts} of {key}: set aside")
    if about.get("vectors") != vectors:
        set_aside(path)
        raise DataError(f"{path}: was found among other vectors: set aside; the next run makes it again")
    return found, matching


# The truth that came with the source


def _compare_shipped(problem: Problem, ids_file: Path, found: Neighbors) -> dict[str, Any]:
    """Compare with the source's own truth over the ranks that both have; DataError at the first real disagreement.

    Distances agree within float32 rounding; an id that only one side has is a tie if its exact distance agrees with
    that at the last rank; one that does not pass the filter of its query is wrong. A zero query has no direction, so
    what a source makes of it under cosine does not count.
    """
    queries, metric, rows = problem.queries, problem.metric, problem.rows
    chosen = slice(None) if problem.query_rows is None else problem.query_rows
    shipped: Ids = np.load(ids_file, mmap_mode="r", allow_pickle=False)[chosen]
    ranks = min(shipped.shape[1], found.ids.shape[1])
    shipped_ids, ids, distances = np.array(shipped[:, :ranks]), found.ids[:, :ranks], found.distances[:, :ranks]
    squares = squared_lengths(queries)
    defined = squares > 0 if metric == "cosine" else np.ones(len(queries), dtype=np.bool_)

    base = _Base(problem.files["base"], np.ones(rows, dtype=np.bool_), range(rows))
    scale = squares if metric == "l2" else np.ones(len(queries))
    tolerance = _SHIPPED_RELATIVE * np.abs(distances) + _SHIPPED_OF_SCALE * (scale[:, np.newaxis] + np.abs(distances))

    only_theirs = np.where(isin_rows(shipped_ids, ids), -1, shipped_ids)
    theirs = _exact(base, queries, metric, only_theirs)
    tied = theirs <= distances[:, -1:] + tolerance[:, -1:]
    passing = problem.asked.passing(only_theirs, problem.columns, problem.payload)
    differs = (only_theirs >= 0) & ~(tied & passing)
    with np.errstate(invalid="ignore"):  # where fewer rows pass than are ranked, all of them must be there
        end = np.where(np.isfinite(distances[:, -1:]), distances[:, -1:] - tolerance[:, -1:], np.inf)
    missed = ~isin_rows(ids, shipped_ids) & (distances < end)
    short = (shipped_ids >= 0).sum(axis=1) < (ids >= 0).sum(axis=1)
    agrees = ~((differs | missed).any(axis=1) | short)
    plain = problem.asked.distinct == (None,) and not problem.own
    distances_file = problem.files.get("shipped_distances") if plain else None
    if distances_file is not None:
        stated = np.sort(np.load(distances_file, mmap_mode="r", allow_pickle=False)[chosen, :ranks], axis=1)
        agrees &= (np.abs(stated - distances) <= tolerance).all(axis=1)
    agrees |= ~defined
    if not agrees.all():
        first = int(np.argmin(agrees))
        first = first if problem.query_rows is None else int(problem.query_rows[first])
        raise DataError(
            f"{ids_file}: the source's truth disagrees with the exact one for {int((~agrees).sum())} "
            f"queries, the first being query {first}; if its entry in datasets.yaml is wrong, mend that, and remove "
            f"{ids_file.parent} and the download that it was made from"
        )
    return {
        "ranks": ranks,
        "agreement": float(agrees[defined].mean()) if defined.any() else None,
        "compared_distances": distances_file is not None,
        "undefined_queries": int((~defined).sum()),
        "ids_that_differ_by_ties": int(((only_theirs >= 0) & defined[:, np.newaxis]).sum()),
    }
