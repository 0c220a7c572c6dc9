"""Memory and time of `anncestry verify` for growing results: memory must not grow with them.

python tests/bench/verify.py [CELLS …]      (default: 100 1000 10000)

Every record, sample and number is there and is made again, but for the page; printed is the largest resident memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests import synthetic  # noqa: E402

BOUND_MIB = 512


def main() -> int:
    """Measure each size; 1 if a bound is broken."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [100, 1000, 10_000]
    print(f"{'cells':>6} {'seconds':>8} {'MiB':>6}  bound", flush=True)
    worst = 0
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        for size in sizes:
            synthetic.results(Path(folder) / str(size), size)
            started = time.monotonic()
            status, peak_mib, said = synthetic.verify(Path(folder) / str(size))
            assert status == 0, said
            worst = max(worst, peak_mib)
            met = "met" if peak_mib < BOUND_MIB else "missed"
            print(f"{size:>6} {time.monotonic() - started:>8.1f} {peak_mib:>6}  {BOUND_MIB} MiB, {met}", flush=True)
    return int(worst >= BOUND_MIB)


if __name__ == "__main__":
    sys.exit(main())
