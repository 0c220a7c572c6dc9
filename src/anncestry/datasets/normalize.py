"""The normalize stage: the vectors exactly as every engine gets them, and the columns that filters act on.

A prefix of the base makes a smaller dataset (with a truth of its own). For cosine each vector is scaled to length 1.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets import metadata, payload
from anncestry.datasets.distance import check_metric, squared_lengths
from anncestry.datasets.formats import NpyWriter, open_vectors
from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress
from anncestry.provenance.records import read_record, replacing, verify_outputs, write_record

OUTPUTS = (
    *("base", "queries", "category", "price", "region", "query_region"),
    *("shipped_ids", "shipped_distances", "shipped_conditioned"),
)
RULES = {
    "l2": "vectors as they are",
    "cosine": "each vector divided by its length (computed in float64, rounded to float32)",
}
ZERO_RULES = {
    "refuse": "there are no zero vectors",
    "leave_out": "zero vectors left out",
    "keep": "zero vectors stay zero",
}
"""Under cosine: what becomes of a vector that is zero, and so has no direction."""
_CALLED = {"base": "rows", "queries": "queries"}
_CHUNK_BYTES = 16 << 20  # a chunk is also held as float64, and the sources' pages come on top


def run(spec: Mapping[str, Any], download_dir: Path, out_dir: Path, key: str) -> dict[str, Any]:
    """Write base.npy, queries.npy, the columns (.npy) and record.json to `out_dir`; returns the record.

    `spec` holds `metric` (l2 or cosine), `prefix` (the first so many rows of the base; None: all) and `seed` (of the
    columns). Truth that came with the source is passed on, unless a prefix, or rows that are left out, make it wrong.
    Memory is bounded whatever the size of the files. Raises DataError where a file is not as its record says, or holds
    NaN or infinity, or zero vectors that `zero_vectors` (see ZERO_RULES) refuses.
    """
    metric, prefix, rule = spec["metric"], spec.get("prefix"), spec.get("zero_vectors", "refuse")
    check_metric(metric)
    download_record = download_dir / "record.json"
    download = read_record(download_record, stage="download")
    files = verify_outputs(download_record, download)
    rows = _rows(prefix, download["rows"], files["base"])
    whole = rows == download["rows"]

    (out_dir / "record.json").unlink(missing_ok=True)
    outputs = {name: out_dir / f"{name}.npy" for name in OUTPUTS}
    for stale in (*outputs.values(), *out_dir.glob("shipped_filtered_*.npy"), *out_dir.glob("payload*")):
        stale.unlink(missing_ok=True)
    content: dict[str, str] = {}
    counts = {"base": rows, "queries": download["queries"]}
    zeros = {name: _count_zeros(files[name], count) for name, count in counts.items()}
    if metric == "cosine" and any(zeros.values()):
        _settle(rule, zeros, counts, files)
    kept = {name: count - zeros[name] * (rule == "leave_out") for name, count in counts.items()}
    rows, whole = kept["base"], whole and kept == counts
    for name, count in counts.items():
        if metric == "l2" and (whole or name == "queries"):
            _link(files[name], outputs[name])
            content[name] = download["content"][name]
        else:
            content[name] = _rewrite(files[name], outputs[name], count, kept[name], unit_length=metric == "cosine")
    content |= _write_columns(outputs, rows, spec["seed"])
    outputs |= _pass_on(files, out_dir, rows, whole)
    if "payload" in files:
        content["payload"] = payload.content(out_dir)
    body = {
        "rule": RULES[metric] + (f"; {ZERO_RULES[rule]}" if metric == "cosine" else ""),
        "zero_vectors": zeros,
        "content": content,
        "rows": rows,
        "queries": kept["queries"],
        "dim": download["dim"],
        "raw_bytes": rows * download["dim"] * 4,
        **{name: download[name] for name in ("shipped_filtered",) if name in download and whole},
        **{name: download[name] for name in ("payload",) if name in download},
    }
    return write_record(
        out_dir / "record.json",
        stage="normalize",
        key=key,
        spec=spec,
        body=body,
        inputs={"download": download_record},  # which holds the digests of the arrays, checked above
        outputs={name: path for name, path in outputs.items() if path.exists()},
    )


def _write_columns(outputs: Mapping[str, Path], rows: int, seed: int) -> dict[str, str]:
    """Write the columns that filters act on; returns column → sha256 of its array."""
    region, query_region = metadata.regions(outputs["base"], np.load(outputs["queries"]), seed)
    columns: dict[str, NDArray[Any]] = {
        "category": metadata.category(rows, seed),
        "price": metadata.price(rows, seed),
        "region": region,
        "query_region": query_region,
    }
    return {name: _save(outputs[name], values) for name, values in columns.items()}


def _pass_on(files: Mapping[str, Path], out_dir: Path, rows: int, whole: bool) -> dict[str, Path]:
    """Pass on the first `rows` rows of what came with the source, and its truth if these are all; label → file."""
    passed: dict[str, Path] = {}
    for name in (name for name in files if name.startswith("payload")):
        passed[name] = out_dir / files[name].name
        if files[name].suffix == ".json" or whole:
            _link(files[name], passed[name])
        else:
            _save(passed[name], np.load(files[name], mmap_mode="r", allow_pickle=False)[:rows])
    for name in (name for name in files if name.startswith("shipped_") and whole):
        passed[name] = out_dir / f"{name}.npy"
        _link(files[name], passed[name])
    return passed


def _rows(prefix: int | None, available: int, base: Path) -> int:
    if prefix is None:
        return available
    if prefix < 1:
        raise ConfigError(f"prefix: must be at least 1, not {prefix}")
    if prefix > available:
        raise DataError(f"{base}: holds {available} rows, fewer than the prefix of {prefix}")
    return prefix


def _settle(rule: str, zeros: Mapping[str, int], counts: Mapping[str, int], files: Mapping[str, Path]) -> None:
    """Say how many rows and queries are zero, and what becomes of them; DataError if they are refused, or all are."""
    found = " and ".join(f"{zeros[name]:,} of {counts[name]:,} {what}" for name, what in _CALLED.items() if zeros[name])
    if rule == "refuse":
        raise DataError(
            f"{files['base'].parent}: {found} are zero, and have no direction, which cosine compares: set zero_vectors "
            "of the dataset in datasets.yaml to leave_out or keep (docs/datasets.md)"
        )
    if rule == "leave_out" and any(zeros[name] == counts[name] for name in counts):
        raise DataError(f"{files['base'].parent}: {found} are zero, so zero_vectors: leave_out leaves nothing")
    print(f"{files['base'].parent.name}: {found} are zero: {ZERO_RULES[rule]}", file=sys.stderr, flush=True)


def _rewrite(source: Path, to: Path, rows: int, kept: int, unit_length: bool) -> str:
    """Copy the first `rows` rows, scaled if asked, without zero ones if fewer are kept; returns the array's sha256."""
    with (
        open_vectors(source, "npy") as vectors,
        replacing(to) as temporary,
        NpyWriter(temporary, (kept, vectors.dim)) as writer,
        Progress(f"normalize {to.parent.name} {to.stem}", rows, "rows") as progress,
    ):
        for chunk in vectors.finite(rows, _CHUNK_BYTES):
            rest = chunk if kept == rows else chunk[chunk.any(axis=1)]
            writer.write(_unit_length(rest) if unit_length else rest)
            progress.add(len(chunk))
    return writer.sha256


def _unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 (n, dim) of length 1. No float32 is so small or large that its square leaves the range of float64."""
    lengths = np.sqrt(squared_lengths(vectors))
    lengths[lengths == 0] = 1
    return (vectors / lengths[:, np.newaxis]).astype(np.float32)


def _count_zeros(path: Path, rows: int) -> int:
    """How many of the first `rows` rows are zero; reading them also refuses NaN and infinity."""
    with open_vectors(path, "npy") as vectors:
        return sum(int((~chunk.any(axis=1)).sum()) for chunk in vectors.finite(rows, _CHUNK_BYTES))


def _link(source: Path, to: Path) -> None:
    """Give a file a second name, or copy it where the file system can't. (Writers replace files, they change none.)"""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, to)
    except OSError:
        with replacing(to) as temporary:
            shutil.copyfile(source, temporary)


def _save(path: Path, values: NDArray[Any]) -> str:
    with replacing(path) as temporary, NpyWriter(temporary, values.shape, values.dtype.str) as writer:
        writer.write(values)
    return writer.sha256
