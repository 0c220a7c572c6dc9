"""Which files took longest, whether all workers were busy until the end, and how busy they kept the machine: what the
order of files and the number of workers should follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psutil
import pytest

_STARTED = psutil.cpu_times()
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
    return [*lines, f"idle at the end: {idle}; {busy_percent():.0f} % of all cores were busy"] if lines else []


def busy_percent() -> float:
    """How much of this machine's processor time was used, by anybody, since this module was loaded."""
    used = [after - before for before, after in zip(_STARTED, psutil.cpu_times(), strict=True)]
    spent = dict(zip(_STARTED._fields, used, strict=True))
    total = sum(spent[name] for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"))
    return 100 * (1 - (spent["idle"] + spent["iowait"]) / total) if total else 0.0
