"""The stages: of each its name, where its key and its files are, which files it reads, and which sources it runs.

The rules of the workflow, and all that looks for what they made, read this table. No path of a stage stands elsewhere.
A key identifies what a stage makes; it is derived from its spec: everything that could change it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any

from anncestry.home import PACKAGE

KEY_DIGITS = 12

_CODE = frozenset({".py", ".go", ".java", ".mod", ".sum", ".html", ".js", ".css"})
_NAME = "[^/@]+"
WILDCARDS: Mapping[str, str] = {
    "key": f"[0-9a-f]{{{KEY_DIGITS}}}",
    **dict.fromkeys(("dataset", "system", "topology", "workload", "experiment"), _NAME),
    **dict.fromkeys(("part", "parts", "run", "clients"), "[0-9]+"),
}
"""Regular expressions of the parts of a path that differ from one file to another."""

Need = tuple[str, str]
"""A stage, and the label of the file of it that another stage reads."""


def canonical(spec: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN. Equal specs give equal text."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(spec: Mapping[str, Any]) -> str:
    """First 12 hex digits of the sha256 of a spec's canonical JSON (48 bits: one collision expected at 17 million)."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:KEY_DIGITS]


def source_digest(files: tuple[Path, ...]) -> str:
    """One digest over the names and contents of source files, for stages that are cheap to repeat."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Stage:
    """A rule of the workflow, or (with `rule` false) what a rule leaves beside its own files.

    What lies in results/ and data/ is tracked by DVC; what lies in scratch/ is not shared.
    """

    name: str
    files: Mapping[str, str]
    """Label → template of the path, of the files that it always makes. The first stands for all in most places."""
    key: str = ""
    """The attribute of a cell that holds its key."""
    spec: str = ""
    """What its spec and its record call the stage, where that is not its name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Wildcard → attribute of a cell that fills it, where they have different names."""
    needs: Mapping[str, Need] = field(default_factory=dict)
    """Label → file that it reads, of the same cell."""
    older: Mapping[str, Need] = field(default_factory=dict)
    """The same, of the cell whose data an upgrade in place opens."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Label → template, of the files that only some of its jobs make, or that Snakemake does not wait for."""
    done: tuple[str, ...] = ()
    """Labels of the files that show that it is complete: the first, where nothing is said."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The code that decides what its numbers mean: folder of the package → modules of it; `*` for all modules directly
    in it, empty for all below it."""
    cheap: bool = False
    """Whether its key holds the digest of its sources; else the key holds an epoch, which the digest guards."""
    rule: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", self.spec or self.name)
        object.__setattr__(self, "done", self.done or (next(iter(self.files)),))

    @cached_property
    def output(self) -> str:
        """Template of its first file."""
        return next(iter(self.files.values()))

    @cached_property
    def folder(self) -> Path:
        """The folder that holds all of its files, and no other stage's."""
        return Path(*self.output.split("/")[:2])

    @property
    def top(self) -> str:
        """The folder of the working directory where it lies: results, data or scratch."""
        return self.folder.parts[0]

    @cached_property
    def _attributes(self) -> dict[str, str]:
        fields = {name for _, name, _, _ in Formatter().parse(self.output) if name} - {"key", "part", "parts", "run"}
        return {name: self.names.get(name, name) for name in fields} | {"key": self.key}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = Formatter().parse(self.output)
        groups = ((text, f"(?P<{name}>{WILDCARDS.get(name, _NAME)})" if name else "") for text, name, _, _ in parts)
        return re.compile("".join(re.escape(text) + group for text, group in groups))

    def key_of(self, cell: object) -> str:
        """Its key in a cell."""
        return str(getattr(cell, self.key))

    def path(self, cell: object, label: str = "", **more: object) -> str:
        """Where one of its files (the first, where none is named) lies for a cell; `more` fills other wildcards."""
        template = self.files[label] if label else self.output
        names = {name: getattr(cell, own) for name, own in self._attributes.items() if name not in more}
        return template.format(**names, **more)

    def inputs(self, cell: object, older: object = None) -> dict[str, str]:
        """Label → path of what it reads of a cell, and of the cell whose data an upgrade in place opens."""
        own = {label: STAGES[name].path(cell, file) for label, (name, file) in self.needs.items()}
        theirs = self.older.items() if older is not None else ()
        return own | {label: STAGES[name].path(older, file) for label, (name, file) in theirs}

    def glob(self, **names: str) -> str:
        """A glob pattern of its first file; wildcards that are not named match all."""
        return self.output.format_map({name: "*" for _, name, _, _ in Formatter().parse(self.output) if name} | names)

    def match(self, path: str) -> dict[str, str] | None:
        """The wildcards in the path of its first file; None for any other path."""
        match = self._pattern.fullmatch(path)
        return match.groupdict() if match else None

    def source_files(self) -> tuple[Path, ...]:
        """All files of its sources."""
        return tuple(sorted({path for folder, modules in self.sources.items() for path in _modules(folder, modules)}))


def _modules(folder: str, modules: str) -> Iterable[Path]:
    if modules == "*":
        return (PACKAGE / folder).glob("*.py")
    return [PACKAGE / folder / f"{module}.py" for module in modules.split()] or code_below(PACKAGE / folder)


def code_below(folder: Path) -> list[Path]:
    """All source files in a folder and below it."""
    return [path for path in folder.rglob("*") if path.suffix in _CODE]


def engine_folders() -> dict[str, Path]:
    """The folder of each engine of this package, by its name. The sources in it have an epoch of their own."""
    return {path.parent.name: path.parent for path in sorted((PACKAGE / "engines").glob("*/__init__.py"))}


def feature_files() -> dict[str, tuple[Path, ...]]:
    """What declares and measures each feature of workloads of this package, by its name. It has an epoch of its own."""
    folders = sorted(path.parent for path in (PACKAGE / "features").glob("*/__init__.py"))
    return {
        folder.name: tuple(path for path in (folder / "__init__.py", folder / "measuring.py") if path.exists())
        for folder in folders
    }


class StagePath:
    """An attribute of a cell: where a file of a stage lies."""

    def __init__(self, stage: str, label: str = "") -> None:
        self._stage, self._label = stage, label

    def __get__(self, cell: object, _: type) -> str:
        return STAGES[self._stage].path(cell, self._label)


_VECTORS: dict[str, Need] = {"vectors": ("normalize", "record")}
_LOADED: dict[str, Need] = {**_VECTORS, "artifact": ("artifact", "record")}
_LOAD = "results/load/{dataset}/{system}/{topology}@{key}"
_QUERY = "results/query/{dataset}/{system}/{topology}/{workload}@{key}"
_PAIR = "results/pair/{dataset}/{system}/{topology}/{workload}@{key}"
PAIR_FILES = ("samples_a", "samples_b", "slices", "resources")
"""What is published with a pair: the samples of both sides, the slices, what was used meanwhile."""
_TABLE = "results/table/{experiment}@{key}"
_REPORT = "results/report/{experiment}@{key}"

_ALL = (
    Stage(
        "artifact",
        {"record": "scratch/artifact/{system}@{key}/record.json"},
        key="artifact",
        names={"system": "built_as"},
        sources={"runtimes": "artifacts building"},
    ),
    Stage(
        "download",
        {"record": "data/download/{dataset}@{key}/record.json"},
        key="download",
        names={"dataset": "origin"},
        sources={"datasets": "buckets download fetching formats packages parquet payload readers sources text"},
    ),
    Stage(
        "normalize",
        {"record": "data/vectors/{dataset}@{key}/record.json"},
        key="vectors",
        needs={"download": ("download", "record")},
        sources={"datasets": "normalize metadata payload distance"},
    ),
    Stage(
        "truth_part",
        {"part": "scratch/truth/{dataset}@{key}/part-{part}-of-{parts}.npz"},
        key="truth",
        spec="truth",
        needs=_VECTORS,
    ),
    Stage(
        "truth",
        {"record": "data/truth/{dataset}@{key}/record.json"},
        key="truth",
        needs=_VECTORS,
        sources={"datasets": "truth metadata payload distance"},
    ),
    Stage(
        "load",
        {"record": "scratch/index/{key}/record.json"},
        key="load",
        needs=_LOADED,
        older={"older": ("load", "record"), "older_record": ("record", "record")},
        sources={
            "": "large",
            "measure": "load server oracle reference vectors requests",
            "metrics": "resources processes disturbance recall",
            "cells": "indexes",
            "runtimes": (
                "base control_groups credentials docker dockerd freeze images leftovers namespaces native remote tls "
                "storage throttle"
            ),
            "runtimes/pace": "",
            "engines": "*",
            "datasets": "distance metadata payload",
            "drive": "",
            "provenance": "gates platform",
        },
    ),
    Stage(
        "record",
        {"record": f"{_LOAD}.json", "resources": f"{_LOAD}.resources.parquet"},
        key="load",
        spec="load",
        needs={"index": ("load", "record")},
    ),
    Stage(
        "session",
        {"session": "scratch/session/{key}/session.json"},
        needs={"index": ("load", "record"), "load": ("record", "record"), **_LOADED},
        beside={"failed": "scratch/session/{key}/failed"},
    ),
    Stage(
        "duet",
        {"session": "scratch/duet/{key}/session.json"},
        needs={"index": ("load", "record"), "load": ("record", "record"), **_LOADED},
        beside={"failed": "scratch/duet/{key}/failed"},
    ),
    Stage("rounds", {"rounds": "scratch/rounds/{key}/rounds.json"}),
    Stage(
        "query",
        {
            "record": f"{_QUERY}.json",
            "samples": f"{_QUERY}.samples.parquet",
            "resources": f"{_QUERY}.resources.parquet",
        },
        key="query",
        beside={"writes": f"{_QUERY}.writes.parquet"},
        done=("record", "samples"),
        sources={
            "datasets": "payload",
            "": "large",
            "measure": "server session ceiling requests vectors runs judge publish further samples tune",
            "metrics": "latency stats special capacity rounds resources processes disturbance defects",
            "cells": "indexes",
        },
    ),
    Stage(
        "recall",
        {"record": "results/recall/{dataset}/{system}/{topology}/{workload}@{key}.json"},
        key="recall",
        beside={"scored": "scratch/session/{key}/recall.json"},
        needs={"query": ("query", "record"), "samples": ("query", "samples"), "truth": ("truth", "record")} | _VECTORS,
        sources={
            "datasets": "payload distance",
            "": "large",
            "measure": "recall runs requests samples vectors",
            "metrics": "recall robust latency stats special capacity defects",
        },
    ),
    Stage(
        "pair",
        {"record": f"{_PAIR}.json", **{label: f"{_PAIR}.{label}.parquet" for label in PAIR_FILES}},
        key="pair",
        needs={"truth": ("truth", "record"), **_VECTORS},
        done=("record", "samples_a"),
        sources={
            "datasets": "payload distance",
            "": "large",
            "measure": "server session ceiling requests vectors runs judge duet pair samples tune recall",
            "metrics": "latency stats special recall robust duet rounds resources processes disturbance defects",
            "cells": "indexes",
            "runtimes": "freeze",
        },
    ),
    Stage(
        "table",
        {end: f"{_TABLE}/numbers.{end}" for end in ("csv", "json", "parquet")},
        beside={"record": f"{_TABLE}/record.json"},
        sources={
            "report/model": "derived numbers quantities",
            "cells": "features indexes",
            "features": "",
            "metrics": "",
        },
        cheap=True,
    ),
    Stage(
        "report",
        {"page": f"{_REPORT}/index.html"},
        needs={"table": ("table", "csv")},
        beside={"record": f"{_REPORT}/record.json"},
        sources={"report": "", "features": "", "provenance": "gates attempts", "cells": "blocks indexes"},
        cheap=True,
    ),
    Stage("run", {"record": "scratch/measured/{key}/run-{run}/record.json"}, key="query", rule=False),
    Stage("servers", {"record": "scratch/paired/{key}/run-{run}/record.json"}, key="pair", rule=False),
    Stage("ceiling", {"record": "results/ceiling/{platform}-{transport}-{clients}@{key}.json"}, rule=False),
    Stage("attempts", {"ledger": _LOAD.replace("load", "attempts", 1)}, key="load", rule=False),
    Stage("platform", {"facts": "results/platform/{platform}.json"}, rule=False),
)
STAGES: Mapping[str, Stage] = {stage.name: stage for stage in _ALL}
"""All stages by their name, the rules in the order in which their jobs run."""

RECORDS: Mapping[str, Stage] = {stage.spec: stage for stage in _ALL if stage.rule and "record" in stage.files}
"""The stages that leave a record, by what the record calls them; of a load, that which publishes it."""

PAGES = Path("reports")
"""Where people find the newest page of each experiment, in a folder of its name: a copy of that in `results`."""
STAMP = ".report"
"""In the folder of such a copy: the digest of the record of the page that it is of."""
RESULTS = ("record", "query", "recall")
"""The stages of a cell whose records the table reads."""

_BY_FOLDER = {str(stage.folder): stage for stage in _ALL}


def stage_at(path: str | Path) -> Stage | None:
    """The stage in whose folder a path lies."""
    return _BY_FOLDER.get("/".join(Path(path).parts[:2]))
