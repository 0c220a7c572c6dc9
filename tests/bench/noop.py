"""Wall time of a call with nothing to do, for growing matrices (median of 3).

python tests/bench/noop.py [CELLS …]      (default: 36 200 1000)

The matrices are made of many workloads on few loads, and of as many loads as workloads; all outputs are empty files.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry import workflow  # noqa: E402
from tests.toy import Toy  # noqa: E402


def measure(cells: int, folder: Path) -> float:
    """Median seconds of a no-op call for a matrix of about `cells` cells."""
    toy = Toy.make(folder)
    side = max(1, round((cells / 4) ** 0.5))
    toy.files["workloads"].update({f"w{i}": {**toy.files["workloads"]["k5"], "warmup": i % 500} for i in range(side)})
    toy.files["datasets"].update({f"d{i}": toy.files["datasets"]["blobs-l2"] for i in range(side)})
    toy.block["workloads"], toy.block["datasets"] = [f"w{i}" for i in range(side)], [f"d{i}" for i in range(side)]
    toy.save()
    made = workflow.expand(workflow.Choice(folder / "config", "default"))
    paths = {made.table_path, made.table_path.replace("csv", "json"), made.table_path.replace("csv", "parquet")}
    paths.add(made.report_path)
    for cell in made.cells:
        paths |= {cell.load_path, cell.query_path, cell.samples_path, cell.recall_path}
        paths |= {path.replace(".json", ".resources.parquet") for path in (cell.load_path, cell.query_path)}
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    times = []
    for _ in range(3):
        started = time.monotonic()
        done = toy.snakemake()
        times.append(time.monotonic() - started)
        assert "Nothing to be done" in done.stdout + done.stderr
    print(f"{len(made.cells):6d} cells {statistics.median(times):6.2f} s", flush=True)
    return statistics.median(times)


def main() -> None:
    """Measure each size."""
    for cells in [int(argument) for argument in sys.argv[1:]] or [36, 200, 1000]:
        with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
            measure(cells, Path(folder))


if __name__ == "__main__":
    main()
