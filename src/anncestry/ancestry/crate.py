"""A Workflow Run RO-Crate of an experiment, by the Provenance Run Crate profile 0.5: the workflow, and every stage run.

In the folder lie all files of the results, the Snakefile with its rules, and `ro-crate-metadata.json`, which says which
stage made which file from which others, when, and by what code. Data and artifacts, which can be made again, are
named by their digests. https://w3id.org/ro/wfrun/provenance/0.5
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from rocrate.model.computationalworkflow import ComputationalWorkflow
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from anncestry import durable
from anncestry.ancestry import graph
from anncestry.cells.matrix import Matrix
from anncestry.errors import DataError
from anncestry.provenance import links
from anncestry.provenance.code import ROOT

PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"),
)
CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
LICENCE = "https://spdx.org/licenses/Apache-2.0"
PROJECT = "https://github.com/anncestry/anncestry"

_FORMATS = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".html": "text/html",
    ".parquet": "application/vnd.apache.parquet",
}
_STAGES = {
    "artifact": "Fetch or build what a system runs",
    "download": "Get a dataset, verified by content",
    "normalize": "Bring vectors into one form, with metadata",
    "truth": "Compute exact neighbours",
    "load": "Load a dataset into a system, measured",
    "query": "Measure searches",
    "ceiling": "Measure what the client itself can send at most",
    "recall": "Score answers against exact neighbours",
    "table": "Gather all numbers into one table",
    "report": "Draw the page",
}


def write(matrix: Matrix, folder: Path) -> str:
    """Write the crate to `folder`, which must not be there yet; returns what it holds, in words.

    DataError if a result is missing or not what its record says: a crate is only made of what would verify.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: is there already, and not empty; name a new folder")
    writer = _Writer(matrix)
    for stage in graph.walk(matrix):
        writer.stage(stage)
    writer.workflow()
    temporary = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        writer.crate.write(temporary)
        if folder.exists():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        durable.place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return f"{folder}: {writer.files} files, {len(writer.actions)} stages that were run"


class _Workflow(ComputationalWorkflow):  # type: ignore[misc]
    """A workflow whose steps are described."""

    TYPES: ClassVar[list[str]] = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]


class _Writer:
    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.crate = ROCrate(version="1.1")
        self.crate.metadata.extra_contexts.append(CONTEXT)
        self.actions: list[tuple[str, Any]] = []
        self.files = 0
        self._entities: dict[tuple[str, str], Any] = {}
        self._tools: dict[str, Any] = {}
        self._codes: dict[str, Any] = {}
        self._times: list[str] = []

    def _context(self, identifier: str, **properties: Any) -> Any:
        properties = {name.lstrip("_"): value for name, value in properties.items() if value is not None}
        properties["@type"] = properties.pop("type")
        return self.crate.add(ContextEntity(self.crate, identifier, properties=properties))

    def _entity(self, file: graph.File) -> Any:
        """A file of the results, in the crate; any other by name and digest only."""
        name = (file.path, file.sha256)
        if name in self._entities:
            return self._entities[name]
        if file.path.startswith("results/"):
            if not Path(file.path).resolve().is_relative_to(Path("results").resolve()):
                raise DataError(f"{file.path}: a link that leads out of results/")
            if links.state(Path(file.path), {"sha256": file.sha256}) is not links.State.SAME:
                raise DataError(f"{file.path}: missing, or not what its record says; `anncestry verify` says more")
            found = self.crate.add_file(
                file.path,
                file.path,
                properties={
                    "name": Path(file.path).name,
                    "sha256": file.sha256,
                    "contentSize": str(Path(file.path).stat().st_size),
                    "encodingFormat": _FORMATS.get(Path(file.path).suffix, "application/octet-stream"),
                },
            )
            self.files += 1
        else:
            found = self._context(
                f"#sha256-{file.sha256}-{len(self._entities)}", type="CreativeWork", name=file.path, sha256=file.sha256
            )
        self._entities[name] = found
        return found

    def _tool(self, stage: str) -> Any:
        if stage not in self._tools:
            self._tools[stage] = self._context(
                f"#tool-{stage}",
                type="SoftwareApplication",
                name=f"anncestry {stage}",
                description=_STAGES[stage],
                url=PROJECT,
                softwareVersion=version("anncestry"),
            )
        return self._tools[stage]

    def _code(self, code: Any) -> Any:
        """The code of a stage, as its agent: a commit, and of a tree that differed from it the digest of the diff."""
        text = f"{code.get('commit') or 'no-commit'}" + (
            f"-{str(code.get('diff_sha256'))[:12]}" if code.get("dirty") else ""
        )
        if text not in self._codes:
            self._codes[text] = self._context(
                f"#code-{text}",
                type="Organization",
                name=f"anncestry {code.get('anncestry', '')} at {text}",
                description="the program that ran this stage by itself",
                url=PROJECT,
            )
        return self._codes[text]

    def stage(self, stage: graph.Made) -> None:
        """One run of a stage: what went in, what came out, when, and with what outcome."""
        ended = str(stage.body["created"])
        self._times.append(ended)
        valid = stage.body.get("valid", True)
        action = self._context(
            f"#run-{stage.stage}-{stage.key}",
            type="CreateAction",
            name=f"{stage.stage} {stage.key}",
            description=f"{_STAGES[stage.stage]}: {stage.path}",
            instrument=self._tool(stage.stage),
            agent=self._code(stage.body.get("code") or {}),
            object=[self._entity(file) for file in stage.used],
            result=[self._entity(file) for file in stage.made],
            endTime=ended,
            actionStatus="http://schema.org/CompletedActionStatus",
            disambiguatingDescription=None if valid else "a gate failed: the record is invalid, its reason is in it",
        )
        self.actions.append((stage.stage, action))

    def workflow(self) -> None:
        """The workflow itself, its engine, its steps, and its run as a whole."""
        crate = self.crate
        root = crate.root_dataset
        root["name"] = f"{self.matrix.config.title}: results of anncestry"
        root["description"] = (
            f"Records, raw samples, table and page of the experiment {self.matrix.config.experiment},"
            " and how each came about."
        )
        root["license"] = self._context(LICENCE, type="CreativeWork", name="Apache License 2.0", url=LICENCE)
        root["datePublished"] = max(self._times, default="1970-01-01")
        root["conformsTo"] = [
            self._context(url, type="CreativeWork", name=name, version=number) for url, name, number in PROFILES
        ]
        engine = self._context(
            "#snakemake",
            type="SoftwareApplication",
            name="Snakemake",
            url="https://snakemake.github.io",
            softwareVersion=version("snakemake"),
        )
        for rules in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
            crate.add_file(
                rules, f"workflow/rules/{rules.name}", properties={"name": rules.name, "encodingFormat": "text/plain"}
            )
        main = crate.add_workflow(ROOT / "Snakefile", "Snakefile", main=True, lang="snakemake", cls=_Workflow)
        main["name"] = "anncestry"
        main["license"] = root["license"]
        main["url"] = PROJECT
        steps = {
            stage: self._context(f"#step-{stage}", type="HowToStep", name=stage, position=str(place), workExample=tool)
            for place, (stage, tool) in enumerate(self._tools.items())
        }
        main["hasPart"] = list(self._tools.values())
        main["step"] = list(steps.values())
        controls = [
            self._context(
                f"#control-{action.id.removeprefix('#run-')}",
                type="ControlAction",
                name=f"orchestrate {action['name']}",
                instrument=steps[stage],
                object=action,
            )
            for stage, action in self.actions
        ]
        agent = next(iter(self._codes.values()))
        run = self._context(
            "#run",
            type="CreateAction",
            name=f"Run of the experiment {self.matrix.config.experiment}",
            instrument=main,
            agent=agent,
            object=self._unmade(),
            result=self._of_stages({"table", "report"}),
            startTime=min(self._times),
            endTime=max(self._times),
            actionStatus="http://schema.org/CompletedActionStatus",
        )
        organised = self._context(
            "#organize",
            type="OrganizeAction",
            name="Snakemake's run",
            agent=agent,
            instrument=engine,
            object=controls,
            result=run,
            startTime=min(self._times),
            endTime=max(self._times),
        )
        root["mentions"] = [run, organised, *(action for _, action in self.actions)]

    def _of_stages(self, stages: Iterable[str]) -> list[Any]:
        return [result for stage, action in self.actions if stage in stages for result in action["result"]]

    def _unmade(self) -> list[Any]:
        """What the run as a whole started from: files that none of its stages made."""
        made = {result.id for _, action in self.actions for result in action["result"]}
        return [entity for entity in self._entities.values() if entity.id not in made]
