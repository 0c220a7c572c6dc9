"""What the paper printed, looked up by what a table shows."""

from __future__ import annotations

import csv
from pathlib import Path

from anncestry.errors import DataError

KEY = ("table", "dataset", "topology", "engine", "metric", "k", "filtered", "clients")


def read_printed(path: Path) -> dict[tuple[str, ...], str]:
    """What the paper printed, by the columns of KEY; DataError if it isn't such a table."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return {
                tuple(row[name] for name in KEY): (
                    printed_text(row["value"]) + (f" ± {row['std']}" if row["std"] else "")
                )
                for row in csv.DictReader(file)
            }
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: not a table of published figures ({error})") from None


def printed_text(value: str) -> str:
    """A figure with the digits that were printed, thousands set apart as in our own."""
    whole, point, digits = value.partition(".")
    return f"{int(whole):,}{point}{digits}" if whole.isdigit() else value
