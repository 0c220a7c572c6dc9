"""Time and memory of rule `report` for growing results, and how long the page takes to open.

python tests/bench/report.py [CELLS …]      (default: 300 1000)

The page is drawn by the rule's own command in a process of its own, then opened in a headless Chromium (make browser)
from its file: open is when it was loaded and the charts near the top are drawn. The goals are those for 1,000 cells;
up to 300 the page is to be smaller, and open sooner.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests import synthetic  # noqa: E402
from tests.browser import chromium  # noqa: E402

CELLS = 1000
RULE_S, RULE_MIB, OPEN_S = 60.0, 2048, 3.0
PAGE_CELLS, PAGE_MB, PAGE_OPEN_S = 300, 1.5, 1.0
"""The goals, and those of a page of at most `PAGE_CELLS`."""

_MEASURED = """
import re, sys
from pathlib import Path
from anncestry import cli
status = cli.main(["report", sys.argv[1]])
# Not ru_maxrss: that begins with what the parent process had.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
sys.exit(status)
"""


def draw(folder: Path, key: str) -> tuple[float, int]:
    """Seconds and largest resident memory in MiB of the rule's command in `folder`."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, key],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ANNCESTRY_CONFIG": str(folder / "config")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.monotonic() - started, int(re.findall(r"\d+", done.stdout)[-1])


def opened(page: Path, profile: Path) -> tuple[float, float]:
    """Seconds until the page in a new window is open, and until its last chart is drawn."""
    with chromium(profile) as browser:
        browser.look()
        started = time.monotonic()
        browser.driver.get(page.resolve().as_uri())
        shown = "return document.querySelector('[data-chart] svg, [data-chart] canvas') !== null"
        browser.until(lambda: browser.js(shown), "a chart")
        first = time.monotonic() - started
        browser.drawn()
        return first, time.monotonic() - started


def main() -> int:
    """Measure each size; 1 if a goal is missed at 1,000 cells or fewer."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [PAGE_CELLS, CELLS]
    missed = False
    print(f"{'cells':>6} {'rule s':>7} {'MiB':>6} {'page MB':>8} {'open s':>7} {'all charts s':>13}", flush=True)
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        for size in sizes:
            here = Path(folder) / str(size)
            matrix = synthetic.results(here, size)
            rule_s, peak_mib = draw(here, matrix.report)
            page = here / matrix.report_path
            open_s, all_s = opened(page, Path(folder) / f"profile-{size}")
            page_mb = page.stat().st_size / 1e6
            small = size <= PAGE_CELLS
            open_goal_s = PAGE_OPEN_S if small else OPEN_S
            met = rule_s <= RULE_S and peak_mib <= RULE_MIB and open_s <= open_goal_s
            met = met and (not small or page_mb <= PAGE_MB)
            missed |= size <= CELLS and not met
            print(
                f"{size:>6} {rule_s:>7.1f} {peak_mib:>6} {page_mb:>8.2f} {open_s:>7.1f} {all_s:>13.1f}"
                f"   goals {RULE_S:g} s, {RULE_MIB} MiB, open {open_goal_s:g} s{f', {PAGE_MB:g} MB' if small else ''}:"
                f" {'met' if met else 'MISSED'}",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
