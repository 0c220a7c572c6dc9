"""Which measured figures of the pages nobody can measure again from their commit.

    python tools/pages/commits.py      (make figures)

Lists each marker (measured.py) and each line of a kept file in docs/ whose commit is not in the history of this
checkout, and each figure that is older than the markers ("here since"). Measure those again, at a commit that is. This
is a list, no test: a clone of the last commits only has no history to look in.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MARKER = re.compile(r"<!-- (measured|here since): ([^;]+); (20[\d-]+); ([0-9a-f]{7,40}) -->")


def named() -> Iterator[tuple[str, str, str, bool]]:
    """Where a commit is named, by what was measured, the commit, and whether the figure is older than the markers."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if found := _MARKER.fullmatch(line.strip()):
                kind, command, _, commit = found.groups()
                yield f"{path.relative_to(ROOT)}:{number}", command, commit, kind != "measured"
    for path in sorted((ROOT / "docs").glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            commits = Counter(commit for line in csv.DictReader(file) for commit in line["commit"].split(", "))
        for commit, lines in commits.items():
            yield str(path.relative_to(ROOT)), f"{lines} lines", commit, False


def in_history(commit: str) -> bool:
    """Whether the present commit descends from it."""
    asked = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    for where, what, commit, old in named():
        if old or not in_history(commit):
            print(f"{where}: {what}: {'older than the markers' if old else f'{commit} is not in this history'}")
