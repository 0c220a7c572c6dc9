"""Exports of all records of a matrix as a graph: what each stage read and made, when, and by what code.

- A Workflow Run RO-Crate, by the Provenance Run Crate profile 0.5. In the folder lie all files of the results, the
  Snakefile with its rules, and `ro-crate-metadata.json`, the graph. Data and artifacts, which can be made again, are
  named by their digests. https://w3id.org/ro/wfrun/provenance/0.5
- PROV-JSON: every stage an activity, every file an entity by its digest, the program and its code the agent.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from prov.model import ProvDocument
from rocrate.model.computationalworkflow import ComputationalWorkflow
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from anncestry import durable
from anncestry.cells import plan
from anncestry.cells.matrix import Matrix
from anncestry.cells.stage import RESULTS, STAGES
from anncestry.errors import DataError
from anncestry.home import HOME, WORKFLOW
from anncestry.provenance import records
from anncestry.provenance.attempts import Ledger

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
    ".jsonl": "application/jsonl",
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
    "pair": "Measure two servers at once, in turns",
    "ceiling": "Measure what the client itself can send at most",
    "recall": "Score answers against exact neighbours",
    "table": "Gather all numbers into one table",
    "report": "Draw the page",
}
NAMESPACE = f"{PROJECT}/prov#"


# The graph


@dataclass(frozen=True)
class File:
    """A file by its path in the working directory, with the digest that a record gives it."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Made:
    """One stage that was run: its record, the files that went in, and those that came out (the record among them)."""

    path: str
    body: Mapping[str, Any]
    used: tuple[File, ...]
    made: tuple[File, ...]

    @property
    def stage(self) -> str:
        return str(self.body["stage"])

    @property
    def key(self) -> str:
        return str(self.body["key"])


def walk(matrix: Matrix) -> Iterator[Made]:
    """Every stage whose record is here, one at a time; DataError for a missing result.

    Data and artifacts may be left out of a clone.
    """
    seen: set[Path] = set()
    made = (str(Path(path).with_name("record.json")) for path in (matrix.table_path, matrix.report_path))
    for path in (*plan.files(matrix, ("artifact", "download", "normalize", "truth", *RESULTS, "pair")), *made):
        if Path(path).exists():
            body = records.read_record(Path(path))
            yield _made(path, body)
            ceiling = records.ceiling_of(body)
            if ceiling is not None and ceiling not in seen and ceiling.exists():
                seen.add(ceiling)
                yield _made(str(ceiling), records.read_record(ceiling))
        elif path.startswith("results/"):
            raise DataError(f"{path}: missing; an attestation or export is of complete results: run snakemake first")


def _made(path: str, body: Mapping[str, Any]) -> Made:
    """DataError for a record that lacks what its schema asks for, or names what lies outside of this folder."""
    records.check_schema(body, path, whole=True)
    try:
        datetime.fromisoformat(str(body["created"]))
    except ValueError:
        raise DataError(f"{path}: created is {body['created']!r}, which is no date") from None
    folder = Path(path).parent
    used = [File(entry["path"], entry["sha256"]) for entry in body["inputs"].values()]
    ceiling = records.ceiling_of(body)
    if ceiling is not None and ceiling.exists():
        used.append(File(str(ceiling), records.sha256_file(ceiling)))
    used += [File(name, digest) for name, digest in (body.get("records") or {}).items()]
    outputs = body["outputs"].values()
    made = [File(os.path.normpath(folder / entry["path"]), entry["sha256"]) for entry in outputs]
    for file in (*used, *made):
        if file.path.startswith(("/", "../")) or os.path.normpath(file.path) != file.path:
            raise DataError(f"{path}: names {file.path}, which does not lie in this folder")
    return Made(path, body, tuple(used), (*made, File(path, records.sha256_file(Path(path)))))


# RO-Crate


def write_crate(matrix: Matrix, folder: Path) -> str:
    """Write the crate to `folder`, which must not be there yet; returns what it holds, in words.

    DataError if a result is missing or not what its record says: a crate is only made of what would verify.
    """
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: is there already, and not empty; name a new folder")
    writer = _Writer(matrix)
    for stage in walk(matrix):
        writer.stage(stage)
    writer.ledgers()
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
        self._entities: dict[File, Any] = {}

    def _context(self, identifier: str, **properties: Any) -> Any:
        """The entity of this name; made where the crate has none yet."""
        properties = {name: value for name, value in properties.items() if value is not None}
        properties["@type"] = properties.pop("type")
        made = self.crate.get(identifier)
        return made or self.crate.add(ContextEntity(self.crate, identifier, properties=properties))

    def _entity(self, file: File) -> Any:
        """A file of the results, in the crate; any other by name and digest only."""
        if file in self._entities:
            return self._entities[file]
        if file.path.startswith("results/"):
            if not Path(file.path).resolve().is_relative_to(Path("results").resolve()):
                raise DataError(f"{file.path}: a link that leads out of results/")
            if records.state(Path(file.path), {"sha256": file.sha256}) is not records.State.SAME:
                raise DataError(f"{file.path}: missing, or not what its record says; `anncestry verify` says more")
            entity = self.crate.add_file(
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
            entity = self._context(
                f"#sha256-{file.sha256}-{len(self._entities)}", type="CreativeWork", name=file.path, sha256=file.sha256
            )
        self._entities[file] = entity
        return entity

    def _tool(self, stage: str) -> Any:
        return self._context(
            f"#tool-{stage}",
            type="SoftwareApplication",
            name=f"anncestry {stage}",
            description=_STAGES[stage],
            url=PROJECT,
            softwareVersion=version("anncestry"),
        )

    def _code(self, code: Any) -> Any:
        """The code of a stage, as an agent of it."""
        text = _code_name(code)
        return self._context(
            f"#code-{text}",
            type="Organization",
            name=f"anncestry {code.get('anncestry', '')} at {text}",
            description="the program that ran this stage by itself",
            url=PROJECT,
        )

    def stage(self, stage: Made) -> None:
        """One run of a stage: what went in, what came out, when, and with what outcome."""
        valid = stage.body.get("valid", True)
        action = self._context(
            f"#run-{stage.stage}-{stage.key}",
            type="CreateAction",
            name=f"{stage.stage} {stage.key}",
            description=f"{_STAGES[stage.stage]}: {stage.path}",
            instrument=self._tool(stage.stage),
            agent=[self._code(code) for code in records.all_codes(stage.body)],
            object=[self._entity(file) for file in stage.used],
            result=[self._entity(file) for file in stage.made],
            endTime=str(stage.body["created"]),
            actionStatus="http://schema.org/CompletedActionStatus",
            disambiguatingDescription=None if valid else "a gate failed: the record is invalid, its reason is in it",
        )
        self.actions.append((stage.stage, action))

    def ledgers(self) -> None:
        """Ledgers of attempts, beside the records that quote their lines: no stage makes them, and they grow."""
        for path in sorted({STAGES["attempts"].path(each) for each in self.matrix.loaded}):
            for file in Ledger(Path(path)).files():
                self._entity(File(str(file), records.sha256_file(file)))

    def workflow(self) -> None:
        """The workflow itself, its engine, its steps, and its run as a whole."""
        crate, config = self.crate, self.matrix.config
        times = [action["endTime"] for _, action in self.actions]
        span = {"startTime": min(times), "endTime": max(times)}
        tools = {stage: action["instrument"] for stage, action in self.actions}
        root = crate.root_dataset
        root["name"] = f"{config.title}: results of anncestry"
        root["description"] = (
            f"Records, raw samples, table and page of the experiment {config.experiment}, and how each came about."
        )
        root["license"] = self._context(LICENCE, type="CreativeWork", name="Apache License 2.0", url=LICENCE)
        root["datePublished"] = span["endTime"]
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
        for rules in (WORKFLOW, *sorted((WORKFLOW.parent / "rules").glob("*.smk"))):
            place = rules.relative_to(HOME).as_posix()
            crate.add_file(rules, place, properties={"name": rules.name, "encodingFormat": "text/plain"})
        main = crate.add_workflow(HOME / "Snakefile", "Snakefile", main=True, lang="snakemake", cls=_Workflow)
        main["name"] = "anncestry"
        main["license"] = root["license"]
        main["url"] = PROJECT
        steps = {
            stage: self._context(f"#step-{stage}", type="HowToStep", name=stage, position=str(place), workExample=tool)
            for place, (stage, tool) in enumerate(tools.items())
        }
        main["hasPart"] = list(tools.values())
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
        agent = list({of.id: of for _, action in self.actions for of in action["agent"]}.values())
        made = {result.id for _, action in self.actions for result in action["result"]}
        run = self._context(
            "#run",
            type="CreateAction",
            name=f"Run of the experiment {config.experiment}",
            instrument=main,
            agent=agent,
            # What the run as a whole started from: files that none of its stages made.
            object=[entity for entity in self._entities.values() if entity.id not in made],
            result=[
                result for stage, action in self.actions if stage in ("table", "report") for result in action["result"]
            ],
            **span,
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
            **span,
        )
        root["mentions"] = [run, organised, *(action for _, action in self.actions)]


def _code_name(code: Mapping[str, Any]) -> str:
    """A commit, and of a tree that differed from it the begin of the difference's digest."""
    differs = f"-{str(code.get('diff_sha256'))[:12]}" if code.get("dirty") else ""
    return f"{code.get('commit') or 'no-commit'}{differs}"


# PROV


def document(matrix: Matrix) -> ProvDocument:
    """The graph of all records that are here. Entities are named by content: `sha256-…`, with the path as a label."""
    doc = ProvDocument()
    doc.add_namespace("anncestry", NAMESPACE)
    counts: Counter[str] = Counter()

    @cache
    def agent(name: str, version: str) -> Any:
        label = f"anncestry {version} at {name}"
        return doc.agent(f"anncestry:code-{name}", {"prov:type": "prov:SoftwareAgent", "prov:label": label})

    @cache
    def entity(file: File) -> Any:
        # Two files of the same content are two entities.
        again = counts[file.sha256]
        counts[file.sha256] += 1
        return doc.entity(
            f"anncestry:sha256-{file.sha256}" + (f"-{again}" if again else ""),
            {"prov:label": file.path, "anncestry:path": file.path, "anncestry:sha256": file.sha256},
        )

    for stage in walk(matrix):
        ended = datetime.fromisoformat(str(stage.body["created"]))
        activity = doc.activity(
            f"anncestry:{stage.stage}-{stage.key}", None, ended, {"prov:label": f"{stage.stage} {stage.key}"}
        )
        for code in records.all_codes(stage.body):
            doc.wasAssociatedWith(activity, agent(_code_name(code), str(code.get("anncestry", ""))))
        for file in stage.used:
            doc.used(activity, entity(file))
        for file in stage.made:
            doc.wasGeneratedBy(entity(file), activity, ended)
    return doc


def write_prov(matrix: Matrix, path: Path) -> str:
    """Write PROV-JSON to `path`; returns what it holds, in words."""
    doc = document(matrix)
    text = io.StringIO()
    doc.serialize(text, format="json")
    records.write_json(path, json.loads(text.getvalue()))
    return f"{path}: {len(list(doc.get_records()))} statements of PROV"
