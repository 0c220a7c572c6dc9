"""PROV-JSON: every stage an activity, every file an entity by its digest, the program and its code the agent."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from prov.model import ProvDocument

from anncestry.ancestry import graph
from anncestry.cells.matrix import Matrix
from anncestry.provenance import records

NAMESPACE = "https://github.com/anncestry/anncestry/prov#"


def document(matrix: Matrix) -> ProvDocument:
    """The graph of all records that are here. Entities are named by content: `sha256-…`, with the path as a label."""
    doc = ProvDocument()
    doc.add_namespace("anncestry", NAMESPACE)
    entities: dict[tuple[str, str], Any] = {}
    counts: Counter[str] = Counter()
    agents: dict[str, Any] = {}

    def entity(file: graph.File) -> Any:
        name = (file.path, file.sha256)
        if name not in entities:
            # Two files of the same content are two entities.
            again = counts[file.sha256]
            counts[file.sha256] += 1
            entities[name] = doc.entity(
                f"anncestry:sha256-{file.sha256}" + (f"-{again}" if again else ""),
                {"prov:label": file.path, "anncestry:path": file.path, "anncestry:sha256": file.sha256},
            )
        return entities[name]

    for stage in graph.walk(matrix):
        code = stage.body.get("code") or {}
        commit = str(code.get("commit") or "unknown")
        if commit not in agents:
            agents[commit] = doc.agent(
                f"anncestry:code-{commit}",
                {"prov:type": "prov:SoftwareAgent", "prov:label": f"anncestry {code.get('anncestry', '')} at {commit}"},
            )
        ended = datetime.fromisoformat(str(stage.body["created"]))
        activity = doc.activity(
            f"anncestry:{stage.stage}-{stage.key}", None, ended, {"prov:label": f"{stage.stage} {stage.key}"}
        )
        doc.wasAssociatedWith(activity, agents[commit])
        for file in stage.used:
            doc.used(activity, entity(file))
        for file in stage.made:
            doc.wasGeneratedBy(entity(file), activity, ended)
    return doc


def write(matrix: Matrix, path: Path) -> str:
    """Write PROV-JSON to `path`; returns what it holds, in words."""
    doc = document(matrix)
    text = io.StringIO()
    doc.serialize(text, format="json")
    records.write_json(path, json.loads(text.getvalue()))
    return f"{path}: {len(list(doc.get_records()))} statements of PROV"
