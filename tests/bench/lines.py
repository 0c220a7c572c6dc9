"""What a bench keeps over its turns: lines of a CSV file in docs/, one for each comparison."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Lines:
    """The file, and the names of its columns."""

    path: Path
    columns: Sequence[str]

    def read(self) -> list[dict[str, str]]:
        """All lines so far; none where there is no file yet."""
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def add(self, more: Sequence[Mapping[str, Any]]) -> None:
        """Write them after those that are there."""
        known = self.read()
        with open(self.path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows([*known, *more])
