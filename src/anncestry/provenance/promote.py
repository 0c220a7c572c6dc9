"""From scratch to results: a record and its files, copied under their published names, the record last."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from anncestry.provenance import records


def promote(source: Path, target: Path, *, stage: str, key: str) -> dict[str, Any]:
    """Copy the record `source` to `target`, and each of its outputs beside it as `STEM.LABEL.EXTENSION`.

    Outputs are verified first: what is published is what was measured. Returns the record.
    """
    record = records.read_record(source, stage=stage, key=key)
    for label, file in records.verify_outputs(source, record).items():
        published = target.with_name(f"{target.stem}.{label}{file.suffix}")
        with records.replacing(published) as temporary:
            shutil.copyfile(file, temporary)
        record["outputs"][label]["path"] = os.path.relpath(published, target.parent)
    sealed = records.seal(record)
    records.write_json(target, sealed)
    return sealed
