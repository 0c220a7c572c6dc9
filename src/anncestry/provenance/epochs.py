"""Epochs: what measuring means, by stage, and the guard that measuring code does not change unnoticed.

A stage's epoch is part of its keys, the code itself is not: a comment would measure everything again. In exchange,
`config/epochs.yaml` keeps the digest of each stage's sources. When it no longer fits, a test fails until somebody
either bumps the epoch (the numbers may change) or attests, with a reason, that they can't.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from anncestry.cells.config import read_yaml, validate
from anncestry.cells.keys import python_files, source_digest
from anncestry.errors import ConfigError
from anncestry.provenance.records import replacing

_PACKAGE = Path(__file__).resolve().parents[1]

_SOURCES = {
    "artifact": [
        "runtimes/artifacts.py",
        "runtimes/go.py",
        "runtimes/kept.py",
        "runtimes/python_packages.py",
        "runtimes/unpacking.py",
    ],
    "download": [
        "datasets/archives.py",
        "datasets/conditions.py",
        "datasets/download.py",
        "datasets/fetching.py",
        "datasets/formats.py",
        "datasets/jsonl.py",
        "datasets/parquet.py",
        "datasets/payload.py",
        "datasets/sources.py",
    ],
    "normalize": [
        "datasets/normalize.py",
        "datasets/metadata.py",
        "datasets/payload.py",
        "datasets/regions.py",
        "datasets/distance.py",
    ],
    "truth": [
        "datasets/truth.py",
        "datasets/shards.py",
        "datasets/metadata.py",
        "datasets/payload.py",
        "datasets/distance.py",
        "datasets/idlists.py",
    ],
    "load": [
        "large.py",
        "measure/load.py",
        "measure/upgrade.py",
        "measure/killed.py",
        "measure/oracle.py",
        "measure/batches.py",
        "measure/vectors.py",
        "measure/withdraw.py",
        "metrics/resources.py",
        "metrics/storage.py",
        "runtimes/_exec.py",
        "runtimes/accounting.py",
        "runtimes/base.py",
        "runtimes/choice.py",
        "runtimes/client_env.py",
        "runtimes/credentials.py",
        "runtimes/docker.py",
        "runtimes/dockerd.py",
        "runtimes/images.py",
        "runtimes/leftovers.py",
        "runtimes/limits.py",
        "runtimes/namespaces.py",
        "runtimes/native.py",
        "runtimes/remote.py",
        "runtimes/tls.py",
        "runtimes/storage.py",
        "measure/storage_path.py",
        "engines",
        "datasets/distance.py",
        "datasets/metadata.py",
        "datasets/payload.py",
        "drive",
        "measure/clients.py",
        "measure/answers.py",
        "provenance/gates.py",
        "provenance/platform.py",
    ],
    "query": [
        "datasets/payload.py",
        "large.py",
        "measure/session.py",
        "measure/ceiling.py",
        "measure/schedule.py",
        "measure/batches.py",
        "measure/keep.py",
        "measure/publish.py",
        "measure/samples.py",
        "measure/filtering.py",
        "measure/tune.py",
        "measure/fault.py",
        "measure/stream.py",
        "metrics/latency.py",
        "metrics/stats.py",
        "metrics/capacity.py",
        "metrics/steady.py",
        "measure/page_cache.py",
    ],
    "recall": [
        "datasets/payload.py",
        "large.py",
        "measure/recall.py",
        "measure/batches.py",
        "measure/filtering.py",
        "metrics/recall.py",
        "metrics/moment.py",
        "measure/stream.py",
        "metrics/stats.py",
        "metrics/capacity.py",
        "datasets/distance.py",
        "datasets/idlists.py",
    ],
}


def sources(stage: str) -> tuple[Path, ...]:
    """The files whose code decides what a stage's numbers mean."""
    files = set(python_files(_PACKAGE / name for name in _SOURCES[stage]))
    if "drive" in _SOURCES[stage]:
        files.update(path for path in (_PACKAGE / "drive").rglob("*") if path.suffix in (".go", ".mod", ".sum"))
    return tuple(sorted(files))


def digests() -> dict[str, str]:
    """Digest of the sources of every stage."""
    return {stage: source_digest(sources(stage)) for stage in _SOURCES}


def changed(path: Path) -> list[str]:
    """Stages whose sources differ from what `path` (config/epochs.yaml) records."""
    recorded = _read(path)
    return [stage for stage, digest in digests().items() if recorded[stage].get("sources") != digest]


def settle(path: Path, stages: list[str], why: str | None) -> None:
    """Record the present sources of the stages: with a reason as an attestation, without one under a new epoch."""
    recorded = _read(path)
    for stage in stages:
        if stage not in _SOURCES:
            raise ConfigError(f"unknown stage {stage!r}; known: {', '.join(_SOURCES)}")
        entry = recorded[stage]
        if why is None:
            entry["epoch"] += 1
            entry.pop("attested", None)
        else:
            entry.setdefault("attested", []).append(why)
        entry["sources"] = digests()[stage]
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    with replacing(path) as temporary:
        temporary.write_text(head + yaml.safe_dump(recorded, sort_keys=False, width=120))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    body = read_yaml(path)
    validate(body, "epochs", path)
    return body  # type: ignore[no-any-return]
