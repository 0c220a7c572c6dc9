"""The download stage: from the first source that gives the declared content to plain npy files.

A dataset's identity is the sha256 of its arrays' bytes (float32, C order), whichever source they come from.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.cells import readers
from anncestry.datasets import distance, formats, payload, sources
from anncestry.datasets.sources import Content, Part
from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress
from anncestry.provenance.records import replacing, write_record

OUTPUTS = ("base", "queries", "shipped_ids", "shipped_distances", "shipped_conditioned")
DISTANCES = ("euclidean", "squared", "angular")


def run(spec: Mapping[str, Any], out_dir: Path, cache_dir: Path, key: str) -> dict[str, Any]:
    """Get a dataset into `out_dir`: base.npy, queries.npy, the shipped truth where there is one, and record.json.

    `spec` holds name, metric, rows, queries, dim, `content` (sha256 of base and queries; absent where not yet known)
    and `sources`, which are tried in order (`sources.in_order`); where it has `conditions`, payload columns are
    written, too (`payload`). A source that can't be had, or whose content is not as declared, is skipped with a printed
    sentence. Downloads stay in `cache_dir`. Returns the record.
    The record says which code read a format that this package doesn't (`readers`). `spec` has `readers` where that
    code is in the key; then it must be the same still.
    Raises DataError, with each source and its reason, when none is left.
    """
    distance.check_metric(spec["metric"])
    record_file = out_dir / "record.json"
    for stale in (record_file, *_written(out_dir)):
        stale.unlink(missing_ok=True)
    stated = sources.Stated(spec["rows"], spec["queries"], spec["dim"], cache_dir, spec.get("conditions", ()))
    skipped: list[dict[str, str]] = []
    for entry in sources.in_order(spec["sources"]):
        try:
            reader = _reader(entry, spec.get("readers", {}))
            content = sources.obtain(entry, stated)
            with sources.forgetting(content.cached):
                body = _convert(spec, entry, content, out_dir)
        except DataError as error:
            # A record travels to other machines, where this one's folders mean nothing.
            reason = str(error).replace(f"{cache_dir}/", "")
            skipped.append({"source": sources.describe(entry), "reason": reason})
            print(f"{spec['name']}: skipped its source of kind {entry['kind']}: {reason}", file=sys.stderr)
            continue
        outputs = {path.stem: path for path in _written(out_dir) if path.exists()}
        body["source"] = {"kind": entry["kind"], "entry": dict(entry), "files": dict(content.files), **reader}
        if content.notes:
            body["source"]["notes"] = dict(content.notes)
        body["skipped"] = skipped
        return write_record(record_file, stage="download", key=key, spec=spec, body=body, outputs=outputs)
    reasons = "; ".join(skip["reason"] for skip in skipped) or "the config lists no source"
    raise DataError(f"dataset {spec['name']}: no source has its content ({reasons})")


def _reader(entry: Mapping[str, Any], in_key: Mapping[str, Any]) -> dict[str, Any]:
    """What the record says of a reader from elsewhere; DataError if it isn't here, or no more what the key holds."""
    facts = {}
    for name in readers.used([entry]):
        try:
            facts["reader"] = readers.code_of(name)
        except ConfigError as error:
            raise DataError(str(error)) from None
        if in_key.get(name, facts["reader"]) != facts["reader"]:
            raise DataError(f"the reader of {name!r} has changed since this run began: start it again")
    return facts


def _written(out_dir: Path) -> list[Path]:
    """What this stage may have written, in order."""
    more = (*out_dir.glob("shipped_filtered_*.npy"), *out_dir.glob("payload*"))
    return [*(out_dir / f"{name}.npy" for name in OUTPUTS), *sorted(more)]


def _convert(spec: Mapping[str, Any], entry: Mapping[str, Any], content: Content, out_dir: Path) -> dict[str, Any]:
    """Write a source's arrays to `out_dir`, all or none; returns the record's facts about them."""
    pinned = {name: sha256 for name, sha256 in (spec.get("content") or {}).items() if sha256}
    digests: dict[str, str] = {}
    facts: dict[str, Any] = {name: spec[name] for name in ("rows", "queries", "dim")}
    with ExitStack() as stack:

        def new(name: str) -> Path:
            return stack.enter_context(replacing(out_dir / name))

        def check(name: str, digest: str, what: str) -> None:
            digests[name] = digest
            if pinned.get(name, digest) != digest:
                raise DataError(f"{what} sha256 {digest[:12]}…, not the declared {pinned[name][:12]}…")

        for name, rows in (("base", spec["rows"]), ("queries", spec["queries"])):
            part = content.parts[name]
            digest = _copy_vectors(part, new(f"{name}.npy"), (rows, spec["dim"]), f"{spec['name']} {name}")
            check(name, digest, f"{part.path}: its {name} have")
        facts["shipped"] = _copy_truth(spec, entry, content, new)
        filtered = []
        for number, filter in enumerate(content.filtered):
            name = f"filtered_{number}"
            k = _copy_neighbors(spec, content.parts[name], new(f"shipped_{name}.npy"))
            filtered.append({"filter": dict(filter), "k": k})
        if filtered:
            facts["shipped_filtered"] = filtered
        if "conditioned" in content.parts:
            _copy_neighbors(spec, content.parts["conditioned"], new("shipped_conditioned.npy"))
        if content.payload is not None:
            for file in payload.files(content.payload):
                shutil.copyfile(file, new(file.name))
            check("payload", payload.content(content.payload), f"{content.payload / payload.FILE}: payload of")
            facts["payload"] = payload.facts(content.payload)
    return {"content": digests, "content_pinned": digests.keys() <= pinned.keys(), **facts}


def _copy_vectors(part: Part, to: Path, shape: tuple[int, int], label: str) -> str:
    """Copy vectors into an npy file of float32; returns the sha256 of the array bytes."""
    with formats.open_vectors(part.path, part.format, part.member) as whole:
        vectors = whole.first(part.columns)
        if (vectors.rows, vectors.dim) != shape:
            raise DataError(
                f"{part.path}: holds {vectors.rows} vectors of dim {vectors.dim} as {label}, "
                f"but the config states {shape[0]} of dim {shape[1]}"
            )
        with Progress(label, shape[0], "rows") as progress, formats.NpyWriter(to, shape) as writer:
            for chunk in vectors.finite(shape[0]):
                writer.write(chunk)
                progress.add(len(chunk))
        return writer.sha256


def _copy_truth(
    spec: Mapping[str, Any], entry: Mapping[str, Any], content: Content, new: Callable[[str], Path]
) -> dict[str, Any] | None:
    """Write the truth that came with the source, distances in our canonical form; None where none came."""
    if "neighbors" not in content.parts:
        return None
    k = _copy_neighbors(spec, content.parts["neighbors"], new("shipped_ids.npy"))
    shipped: dict[str, Any] = {"k": k, "distances": None}
    part = content.parts.get("distances")
    if part is None:
        return shipped
    with formats.open_truth(part.path, part.format, "distances", part.member) as distances:
        if not distances.rows:
            return shipped
        if (shape := (distances.rows, distances.dim)) != (spec["queries"], k):
            raise DataError(
                f"{part.path}: holds distances of shape {shape}, but neighbors of shape {(spec['queries'], k)}"
            )
        shipped["distances"] = stated = _stated_distances(spec["metric"], entry, part)
        with formats.NpyWriter(new("shipped_distances.npy"), shape, "<f8") as writer:
            for chunk in distances.chunks():
                writer.write(np.square(chunk, dtype=np.float64) if stated == "euclidean" else chunk)
    return shipped


def _copy_neighbors(spec: Mapping[str, Any], part: Part, to: Path) -> int:
    """Write the ids of shipped truth, npy of int64 (queries, k); returns k."""
    with formats.open_truth(part.path, part.format, "neighbors", part.member) as truth:
        if truth.rows != spec["queries"]:
            raise DataError(
                f"{part.path}: holds neighbors of {truth.rows} queries, but the config states {spec['queries']}"
            )
        with formats.NpyWriter(to, (truth.rows, truth.dim), "<i8") as writer:
            for ids in truth.ids():
                if bool((ids >= spec["rows"]).any()):
                    raise DataError(
                        f"{part.path}: holds neighbor {int(ids.max())}, but the base has {spec['rows']} rows"
                    )
                writer.write(ids)
        return truth.dim


def _stated_distances(metric: str, entry: Mapping[str, Any], part: Part) -> str:
    """What the source's distances are: its `distances_are`, else the custom of its format."""
    custom = "angular" if metric == "cosine" else "squared" if part.format == "ibin" else "euclidean"
    stated = str(entry.get("distances_are", custom))
    if stated not in DISTANCES:
        raise ConfigError(f"distances_are: {stated!r} is unknown; choose one of {', '.join(DISTANCES)}")
    return stated
