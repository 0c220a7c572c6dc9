"""Which code made a record, and the guard that measuring code does not change unnoticed.

An epoch says what measuring means, by stage, by engine, and by feature of workloads. It is part of the keys of its
stage (an engine's, of its loads, a feature's, of queries that have it, both from the second epoch on); the code itself
is not: a comment would measure everything again. `config/epochs.yaml` therefore keeps the digest of the sources of each
stage, and of each engine and feature. If it differs,
a test fails until the epoch is bumped (the numbers may change) or the change is attested, with a reason why no number
can change.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml

import anncestry
from anncestry import durable
from anncestry.cells.config import read_yaml, validate
from anncestry.cells.stage import STAGES, code_below, engine_folders, feature_files, source_digest
from anncestry.errors import ConfigError
from anncestry.home import CHECKOUT, LOCK, build_facts

_PARTS = ("src", "workflow", "Snakefile", LOCK.name)
"""What of the checkout decides how something is measured, beside the config, which is in the specs."""


def _git(*arguments: str) -> str | None:
    if CHECKOUT is None:
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@cache
def code_facts() -> dict[str, Any]:
    """Package version, git commit, dirty flag, and the sha256 of the uncommitted diff (None where there is no git).

    `lock_sha256` is that of requirements.lock, which pins every package by version and digest. Where the package was
    installed from a wheel, these are the facts of the checkout that the wheel was built from.
    """
    return {
        "anncestry": anncestry.__version__,
        **(build_facts() or tree_facts()),
        "lock_sha256": hashlib.sha256(LOCK.read_bytes()).hexdigest() if LOCK.exists() else None,
    }


def tree_facts() -> dict[str, Any]:
    """`commit`, `dirty` and `diff_sha256` of this checkout (None where there is no git)."""
    commit = _git("rev-parse", "HEAD")
    diff = _difference() if commit else None
    return {
        "commit": commit.strip() if commit else None,
        "dirty": bool(diff) if diff is not None else None,
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
    }


def _difference() -> str | None:
    """What the tree holds beyond its commit: changed lines, and files that git does not know yet, whole."""
    changed = _git("diff", "HEAD", "--", *_PARTS)
    new = _git("ls-files", "--others", "--exclude-standard", "--", *_PARTS)
    if changed is None or new is None or CHECKOUT is None:
        return None
    files = [CHECKOUT / name for name in sorted(new.splitlines()) if (CHECKOUT / name).is_file()]
    return changed + "".join(
        f"{file.relative_to(CHECKOUT)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files
    )


@cache
def package_versions(*names: str) -> dict[str, str | None]:
    """Installed version of each distribution, None where it is not installed."""
    return {name: next((found.version for found in distributions(name=name)), None) for name in names}


# Epochs


_STAGES = {name: stage for name, stage in STAGES.items() if stage.sources and not stage.cheap}


def sources() -> dict[str, tuple[Path, ...]]:
    """The source files of every stage that has an epoch, and of every feature and engine of this package."""
    stages = {name: stage.source_files() for name, stage in _STAGES.items()}
    engines = {name: tuple(code_below(folder)) for name, folder in engine_folders().items()}
    return stages | feature_files() | engines


def changed(path: Path) -> list[str]:
    """Stages, features and engines whose sources differ from what `path` (config/epochs.yaml) records."""
    recorded = _read(path)
    return [name for name, files in sources().items() if _entry(recorded, name).get("sources") != source_digest(files)]


def settle(path: Path, names: Sequence[str], why: str | None) -> None:
    """Record the present sources of stages, features and engines: attested with a reason, else under a new epoch, which
    what was attested before is not of."""
    recorded, present = _read(path), sources()
    attested = _attested(recorded)
    for name in names:
        if name not in present:
            raise ConfigError(f"unknown stage, feature or engine {name!r}; known: {', '.join(present)}")
        entry = _entry(recorded, name)
        entry["sources"] = source_digest(present[name])
        if why is None:
            entry["epoch"] += 1
            for of in attested.values():
                of.pop(name, None)
        else:
            attested.setdefault(why, {})[name] = None
    # At the end, where what two branches attested is merged most easily.
    recorded["attestations"] = [{"why": why, "of": list(of)} for why, of in attested.items() if of]
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    fresh = path.with_name(f".{path.name}")
    text = yaml.safe_dump(recorded, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
    fresh.write_text(head + text)
    durable.place(fresh, path)


def _attested(recorded: dict[str, Any]) -> dict[str, dict[str, None]]:
    """Reason → the names that it is of, taken out of a file, where earlier versions kept them in the entries."""
    found: dict[str, dict[str, None]] = {}
    for each in recorded.pop("attestations", []):
        found.setdefault(each["why"], {}).update(dict.fromkeys(each["of"]))
    stages = {name: entry for name, entry in recorded.items() if name in _STAGES}
    for name, entry in {**stages, **recorded.get("engines", {}), **recorded.get("features", {})}.items():
        for why in entry.pop("attested", []):
            found.setdefault(why, {})[name] = None
    return found


def _entry(recorded: dict[str, Any], name: str) -> dict[str, Any]:
    """The entry of a stage, a feature or an engine, to read or to change; a new one for what is not listed."""
    if name in _STAGES:
        return recorded[name]  # type: ignore[no-any-return]
    kind = "features" if name in feature_files() else "engines"
    return recorded.setdefault(kind, {}).setdefault(name, {"epoch": 1})  # type: ignore[no-any-return]


def _read(path: Path) -> dict[str, Any]:
    body = read_yaml(path)
    validate(body, "epochs", path)
    return body  # type: ignore[no-any-return]
