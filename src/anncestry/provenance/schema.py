"""What a record must look like, by stage, and how records of earlier schema versions are brought to the present one.

The schemas lie in `workflow/schemas/records.schema.yaml`. A record is always written in the present version and
checked in full then; read, what it holds must be of the right kind, so that an older one with less in it can still
be read; `verify` asks for everything again. A version that this program does not know yet is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml

from anncestry.cells.config import SCHEMAS
from anncestry.errors import DataError
from anncestry.schemas import Schema

VERSION = 2
"""Schema version of the records that are written."""

STAGES = ("artifact", "download", "normalize", "truth", "load", "run", "query", "recall", "ceiling", "table", "report")

_ENVELOPE = ["schema_version", "stage", "spec"]


def _from_1(record: dict[str, Any]) -> dict[str, Any]:
    """Version 2 names the lock file, limits, virtualisation, and the load after a measurement; 1 did not know them."""
    if isinstance(record.get("code"), dict):
        record["code"].setdefault("lock_sha256", None)
    machine = record.get("platform")
    if isinstance(machine, dict):
        machine.setdefault("load_average_before", machine.get("load_average_1min"))
        for name in ("cpu_flags", "governor", "virtualisation", "limits", "load_average_after"):
            machine.setdefault(name, None)
    return record


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
"""For each earlier version, what makes a record of it one of the next; a fact that was not kept becomes None."""


def migrate(record: Mapping[str, Any], source: object) -> dict[str, Any]:
    """The record in the present version; DataError names `source` if its version is newer, or none."""
    version = record.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{source}: schema version {version!r} is none of anncestry's")
    if version > VERSION:
        raise DataError(
            f"{source}: written in schema version {version} by a newer anncestry; this one reads up to {VERSION}: "
            "update it"
        )
    if version == VERSION:
        return dict(record)
    body: dict[str, Any] = copy.deepcopy(dict(record))
    while body["schema_version"] < VERSION:
        step = body["schema_version"]
        if step not in MIGRATIONS:
            raise DataError(f"{source}: schema version {version}, from which this program can't go on")
        body = {**MIGRATIONS[step](body), "schema_version": step + 1}
    return body


def check(record: Mapping[str, Any], source: object, *, whole: bool) -> None:
    """Hold a record of the present version against the schema of its stage; DataError names `source` and the key.

    With `whole`, every part that the schema requires must be there; else only what is there must be right.
    """
    stage = record.get("stage")
    if stage not in STAGES:
        raise DataError(f"{source}: a record of stage {stage!r}, which there is not")
    for error in _schema(str(stage), whole).errors(record):
        where = ".".join(str(part) for part in error.absolute_path)
        message = error.message if len(error.message) < 160 else f"does not satisfy {error.validator!r}"
        raise DataError(f"{source}: not a {stage} record of schema version {VERSION}: {where or 'it'}: {message}")


@cache
def _schema(stage: str, whole: bool) -> Schema:
    envelope = yaml.load((SCHEMAS / "records.schema.yaml").read_text(), Loader=yaml.CSafeLoader)
    own = envelope["$defs"][stage]
    if not whole:
        envelope["required"] = _ENVELOPE
        for part in (own, envelope["$defs"]["measured"], envelope["$defs"]["machine"], envelope["properties"]["code"]):
            part.pop("required", None)
    return Schema({**envelope, "allOf": [{"$ref": f"#/$defs/{stage}"}]})
