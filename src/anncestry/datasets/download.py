"""The download stage: from the first source that gives the declared content to plain npy files.

A dataset's identity is the sha256 of its arrays' bytes (float32, C order), whichever source they come from.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

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
    and `sources`, which are tried in order; where it has `conditions`, payload columns are written, too (`payload`). A
    source that can't be had, or whose content is not as declared, is skipped with a printed sentence. Downloads stay in
    `cache_dir`. Returns the record.
    Raises DataError, with each source and its reason, when none is left.
    """
    distance.check_metric(spec["metric"])
    record_file = out_dir / "record.json"
    for stale in (record_file, *_written(out_dir)):
        stale.unlink(missing_ok=True)
    skipped: list[dict[str, str]] = []
    for entry in spec["sources"]:
        try:
            content = sources.obtain(
                entry,
                rows=spec["rows"],
                queries=spec["queries"],
                dim=spec["dim"],
                cache_dir=cache_dir,
                conditions=spec.get("conditions", ()),
            )
            try:
                body = _convert(spec, entry, content, out_dir)
            except DataError:
                content.forget()
                raise
        except DataError as error:
            # A record travels to other machines, where this one's folders mean nothing.
            reason = str(error).replace(f"{cache_dir}/", "")
            skipped.append({"source": sources.describe(entry), "reason": reason})
            print(f"{spec['name']}: skipped its source of kind {entry['kind']}: {reason}", file=sys.stderr)
            continue
        outputs = {path.stem: path for path in _written(out_dir) if path.exists()}
        body["source"] = {"kind": entry["kind"], "entry": dict(entry), "files": dict(content.files)}
        if content.notes:
            body["source"]["notes"] = dict(content.notes)
        body["skipped"] = skipped
        return write_record(record_file, stage="download", key=key, spec=spec, body=body, outputs=outputs)
    reasons = "; ".join(skip["reason"] for skip in skipped) or "the config lists no source"
    raise DataError(f"dataset {spec['name']}: no source gives its content ({reasons})")


def _file(out_dir: Path, name: str) -> Path:
    return out_dir / f"{name}.npy"


def _written(out_dir: Path) -> list[Path]:
    """What this stage may have written, in order."""
    more = (*out_dir.glob("shipped_filtered_*.npy"), *out_dir.glob("payload*"))
    return [*(_file(out_dir, name) for name in OUTPUTS), *sorted(more)]


def _convert(spec: Mapping[str, Any], entry: Mapping[str, Any], content: Content, out_dir: Path) -> dict[str, Any]:
    """Write a source's arrays to `out_dir`, all or none; returns the record's facts about them."""
    pinned = {name: sha256 for name, sha256 in (spec.get("content") or {}).items() if sha256}
    digests: dict[str, str] = {}
    with ExitStack() as stack:
        for name, declared in (("base", spec["rows"]), ("queries", spec["queries"])):
            temporary = stack.enter_context(replacing(_file(out_dir, name)))
            part = content.parts[name]
            digests[name] = _copy_vectors(part, temporary, (declared, spec["dim"]), f"{spec['name']} {name}")
            if pinned.get(name, digests[name]) != digests[name]:
                raise DataError(
                    f"{part.path}: its {name} have sha256 {digests[name][:12]}…, not the declared {pinned[name][:12]}…"
                )
        shipped = _copy_truth(spec, entry, content, out_dir, stack)
        filtered = []
        for number, filter in enumerate(content.filtered):
            to = stack.enter_context(replacing(_file(out_dir, f"shipped_filtered_{number}")))
            filtered.append(
                {"filter": dict(filter), "k": _copy_neighbors(spec, content.parts[f"filtered_{number}"], to)}
            )
        if "conditioned" in content.parts:
            to = stack.enter_context(replacing(_file(out_dir, "shipped_conditioned")))
            _copy_neighbors(spec, content.parts["conditioned"], to)
        if content.payload is not None:
            digests["payload"] = _copy_payload(content.payload, out_dir, stack)
            if pinned.get("payload", digests["payload"]) != digests["payload"]:
                raise DataError(
                    f"{content.payload / payload.FILE}: payload of sha256 {digests['payload'][:12]}…, not the declared "
                    f"{pinned['payload'][:12]}…"
                )
    return {
        "content": digests,
        "content_pinned": digests.keys() <= pinned.keys(),
        "rows": spec["rows"],
        "queries": spec["queries"],
        "dim": spec["dim"],
        "shipped": shipped,
        **({"shipped_filtered": filtered} if filtered else {}),
        **({"payload": payload.facts(content.payload)} if content.payload is not None else {}),
    }


def _copy_payload(folder: Path, out_dir: Path, stack: ExitStack) -> str:
    """Copy payload columns and conditions; returns the digest of their content."""
    for file in payload.files(folder):
        shutil.copyfile(file, stack.enter_context(replacing(out_dir / file.name)))
    return payload.content(folder)


def _copy_vectors(part: Part, to: Path, shape: tuple[int, int], label: str) -> str:
    """Copy vectors into an npy file of float32; returns the sha256 of the array bytes."""
    with formats.open_vectors(part.path, part.format, part.member) as vectors:
        if (vectors.rows, vectors.dim) != shape:
            raise DataError(
                f"{part.path}: holds {vectors.rows} vectors of dim {vectors.dim} as {label}, "
                f"where the config states {shape[0]} of dim {shape[1]}"
            )
        with Progress(label, shape[0], "rows") as progress, formats.NpyWriter(to, shape) as writer:
            for chunk in formats.finite_chunks(part.path, vectors.chunks()):
                writer.write(chunk)
                progress.add(len(chunk))
        return writer.sha256


def _copy_truth(
    spec: Mapping[str, Any], entry: Mapping[str, Any], content: Content, out_dir: Path, stack: ExitStack
) -> dict[str, Any] | None:
    """Write the truth that came with the source, distances in our canonical form; None where none came."""
    part = content.parts.get("neighbors")
    if part is None:
        return None
    k = _copy_neighbors(spec, part, stack.enter_context(replacing(_file(out_dir, "shipped_ids"))))
    shipped: dict[str, Any] = {"k": k, "distances": None}
    part = content.parts.get("distances")
    if part is None:
        return shipped
    with formats.open_distances(part.path, part.format, part.member) as found:
        if found is None:
            return shipped
        if (shape := (found.rows, found.dim)) != (spec["queries"], k):
            raise DataError(
                f"{part.path}: holds distances of shape {shape}, but neighbors of shape {(spec['queries'], k)}"
            )
        stated = _stated_distances(spec["metric"], entry, part)
        to = stack.enter_context(replacing(_file(out_dir, "shipped_distances")))
        with formats.NpyWriter(to, shape, "<f8") as writer:
            for chunk in found.chunks():
                writer.write(np.square(chunk, dtype=np.float64) if stated == "euclidean" else chunk)
    shipped["distances"] = stated
    return shipped


def _copy_neighbors(spec: Mapping[str, Any], part: Part, to: Path) -> int:
    """Write the ids of shipped truth, npy of int64 (queries, k); returns k."""
    with formats.open_neighbors(part.path, part.format, part.member) as found:
        if found.rows != spec["queries"]:
            raise DataError(
                f"{part.path}: holds neighbors of {found.rows} queries, where the config states {spec['queries']}"
            )
        with formats.NpyWriter(to, (found.rows, found.dim), "<i8") as writer:
            for ids in found.ids():
                if bool((ids >= spec["rows"]).any()):
                    raise DataError(
                        f"{part.path}: holds neighbor {int(ids.max())}, though the base has {spec['rows']} rows"
                    )
                writer.write(ids)
        return found.dim


def _stated_distances(metric: str, entry: Mapping[str, Any], part: Part) -> str:
    """What the source's distances are: its `distances_are`, else the custom of its format."""
    custom = "angular" if metric == "cosine" else "squared" if part.format == "ibin" else "euclidean"
    stated = str(entry.get("distances_are", custom))
    if stated not in DISTANCES:
        raise ConfigError(f"distances_are: {stated!r} is unknown; choose one of {', '.join(DISTANCES)}")
    return stated
