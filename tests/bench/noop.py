"""Wall time of a call with nothing to do, for growing matrices: how long `snakemake all` takes to see that.

python tests/bench/noop.py [CELLS …]      (default: 200 1000 5000)

The matrices are made of many workloads on few loads, and of as many loads as workloads; all records are short ones.
Printed is the fastest of 3 calls (what else the machine does only ever adds), with their range; the goal, for 2 cores;
and by how much the time grew for each time that the cells did: below 1, it grows more slowly than they do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry import workflow  # noqa: E402
from tests.toy import Toy, stub  # noqa: E402

CALLS = 3
PADDING = {f"fact {number}": {"value": number / 7, "said": "as long as a sentence"} for number in range(180)}
"""So that a record is as long as one of a cell: 12 kB."""
GOALS_S = {200: 4.0, 1000: 6.0, 5000: 20.0}


def finished(cells: int, folder: Path) -> tuple[Toy, int]:
    """A matrix of about `cells` cells of which every output is there, and how many they are."""
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
        paths.add(cell.samples_path)
        for stage, path in (("load", cell.load_path), ("query", cell.query_path), ("recall", cell.recall_path)):
            stub(folder / path, stage, getattr(cell, stage), **PADDING)
        paths |= {path.replace(".json", ".resources.parquet") for path in (cell.load_path, cell.query_path)}
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    for stage, path in (("table", made.table_path), ("report", made.report_path)):
        stub((folder / path).with_name("record.json"), stage, getattr(made, stage))
    return toy, len(made.cells)


def call_s(toy: Toy) -> float:
    """Seconds of one call."""
    started = time.monotonic()
    done = toy.snakemake()
    elapsed_s = time.monotonic() - started
    assert "Nothing to be done" in done.stdout + done.stderr
    return elapsed_s


def main() -> None:
    """Measure each size."""
    sizes = [int(argument) for argument in sys.argv[1:]] or list(GOALS_S)
    print(f"{'cells':>6} {'fastest':>9}  {'range':<14} {'goal':<16} growth / growth of cells", flush=True)
    before: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        for size in sizes:
            toy, cells = finished(size, Path(folder) / str(size))
            call_s(toy)  # compiles, and warms the disk's cache
            times = sorted(call_s(toy) for _ in range(CALLS))
            best = times[0]
            goal_s = GOALS_S.get(size)
            met = "" if goal_s is None else f"{goal_s:.0f} s, {'met' if best < goal_s else 'missed'}"
            growth = "" if before is None else f"{(best / before[1]) / (cells / before[0]):.2f}"
            spread = f"{best:.2f}–{times[-1]:.2f}"
            print(f"{cells:6d} {best:7.2f} s  {spread:<14} {met:<16} {growth}".rstrip(), flush=True)
            before = (cells, best)
            shutil.rmtree(toy.folder)


if __name__ == "__main__":
    main()
