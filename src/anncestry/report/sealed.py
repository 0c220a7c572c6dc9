"""Records of the table and the page: what they were made from, and the digest of every file in their folders.

They lie beside the files as record.json, like those of every other stage, and are written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.provenance.records import write_record


def table(folder: Path, key: str, spec: Mapping[str, Any], df: pd.DataFrame) -> dict[str, Any]:
    """Seal the table `df` that was written to `folder`, with the digests of all records that it was gathered from."""
    made_from = dict(sorted(set(zip(df["record"], df["record_sha256"], strict=True))))
    return write_record(
        folder / "record.json",
        stage="table",
        key=key,
        spec=spec,
        outputs={suffix: folder / f"numbers.{suffix}" for suffix in ("csv", "json", "parquet")},
        body={
            "rows": len(df),
            "numbers": int(df["value"].notna().sum()),
            "records": {path: digest for path, digest in made_from.items() if digest},
        },
    )


def report(folder: Path, key: str, spec: Mapping[str, Any], table_dir: Path) -> dict[str, Any]:
    """Seal the page in `folder`, drawn from the table in `table_dir`, with all files beside it and below."""
    record = folder / "record.json"
    return write_record(
        record,
        stage="report",
        key=key,
        spec=spec,
        inputs={"table": table_dir / "numbers.parquet"},
        outputs={
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path != record
        },
        body={"title": spec["title"]},
    )
