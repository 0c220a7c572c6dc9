"""Memory and time of `anncestry verify` for growing results: memory must not grow with them, time no faster than they.

python tests/bench/verify.py [CELLS …]      (default: 500 1000 2000 10000; multiples of 20)

Every record, sample and number is there and is made again, but for the page; printed are CPU and the largest resident
memory. `growth` is by how much CPU grew for each time that the cells did: 1 is linear, 2 would be as their square.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests import synthetic  # noqa: E402

SIZES = (500, 1000, 2000, 10_000)
BOUND_MIB = 512
LINEAR = 1.15


def main() -> int:
    """Measure each size; 1 if a bound is broken, or CPU grows faster than the cells."""
    sizes = [int(argument) for argument in sys.argv[1:]] or list(SIZES)
    print(f"{'cells':>6} {'wall s':>8} {'CPU s':>8} {'ms a cell':>10} {'MiB':>6}  bound, growth", flush=True)
    broken = False
    before: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        for size in sizes:
            synthetic.results(Path(folder) / str(size), size)
            started, spent_s = time.monotonic(), _children_s()
            status, peak_mib, said = synthetic.verify(Path(folder) / str(size))
            assert status == 0, said
            wall_s, cpu_s = time.monotonic() - started, _children_s() - spent_s
            met, growth = "met" if peak_mib < BOUND_MIB else "missed", ""
            broken |= peak_mib >= BOUND_MIB
            if before is not None:
                exponent = math.log(cpu_s / before[1]) / math.log(size / before[0])
                broken |= exponent > LINEAR
                growth = f", {exponent:.2f}"
            before = size, cpu_s
            print(
                f"{size:>6} {wall_s:>8.1f} {cpu_s:>8.1f} {1e3 * cpu_s / size:>10.1f} {peak_mib:>6}  "
                f"{BOUND_MIB} MiB, {met}{growth}",
                flush=True,
            )
    return int(broken)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
