"""Which files took longest, and whether all workers were busy until the end: what the order of files should follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

_MOST_FILES = 25


def sentences(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Lines of seconds by file, longest first, and how long each worker had nothing to do in the end."""
    took_s, ends_s = Counter[str](), dict[str, float]()
    for report in reports:
        took_s[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
        worker = getattr(report, "worker_id", "one")
        ends_s[worker] = max(ends_s.get(worker, 0.0), report.stop)
    lines = [f"{seconds:6.0f} s {file}" for file, seconds in took_s.most_common(_MOST_FILES)]
    idle = ", ".join(f"{worker} {max(ends_s.values()) - end_s:.0f} s" for worker, end_s in sorted(ends_s.items()))
    return [*lines, f"idle at the end: {idle}"] if lines else []
