"""A dataset of any size, made on the fly, through the stages that read it: each in a process under a hard limit.

`python -m tests.scale FILE WORD …` is such a process: it runs `anncestry WORD …` (or a step of its own, see `_STEPS`)
and writes what that cost to FILE.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry import workflow
from anncestry.cells.matrix import Cell, Matrix
from anncestry.drive import build
from anncestry.runtimes import control_groups, namespaces
from anncestry.runtimes.base import Limits
from tests.toy import ROOT, Toy

ROWS = int(os.environ.get("ANNCESTRY_SCALE_ROWS", 1_000_000))
LIMIT_MIB = int(os.environ.get("ANNCESTRY_SCALE_MIB", 400))
DIM = 96
QUERIES = 100
DEPTH = 100
_STATUS = Path("/proc/self/status")
_EVERY_S = 0.005
_BLOCK = 100_000
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cost:
    """What a stage took: `heap_mib` is the most that it had of its own at once, mapped files not counted."""

    wall_s: float
    cpu_s: float
    heap_mib: int
    held_by: str
    """What enforced the limit; empty where none was asked."""


@dataclass(frozen=True)
class Bench:
    """A folder with a matrix of one cell, on a dataset of `rows` rows whose truth is made in `parts` shards."""

    folder: Path
    rows: int
    limit_mib: int | None

    @classmethod
    def make(
        cls,
        folder: Path,
        rows: int,
        limit_mib: int | None,
        parts: int = 3,
        queries: int = QUERIES,
        metric: str = "cosine",
    ) -> Bench:
        """Only the config; nothing is made yet."""
        toy = Toy.make(folder)
        toy.one_cell()
        source = {"kind": "synthetic", "generator": "blobs", "samples": rows + queries, "centers": 1000, "seed": 1}
        sizes = {"rows": rows, "queries": queries, "dim": DIM}
        toy.files["datasets"]["blobs-l2"].update(metric=metric, sources=[source], **sizes)
        toy.files["config"]["truth"] = {"shard_mib": rows * DIM * 4 / 2**20 / (parts - 0.5)}
        toy.files["config"]["load"] = {"batch_rows": 50_000}
        toy.files["workloads"]["k5"].update(k=10, queries=queries // 2, warmup=queries // 10)
        toy.save()
        return cls(folder, rows, limit_mib)

    @property
    def matrix(self) -> Matrix:
        """The matrix of the config."""
        return workflow.expand(workflow.Choice(self.folder / "config", "default"))

    @property
    def cell(self) -> Cell:
        """The one cell."""
        return self.matrix.cells[0]

    def run(self, *words: str) -> Cost:
        """One stage, by its command; AssertionError with what it said if it fails, or is killed for its memory."""
        enclosure = control_groups.enclose("scale", Limits(memory_mib=self.limit_mib))
        told = self.folder / "cost.json"
        told.unlink(missing_ok=True)
        inner = [sys.executable, "-m", "tests.scale", str(told), *words]
        try:
            done = subprocess.run(
                namespaces.wrapped([f"--tie={os.getpid()}", *enclosure.arguments()], inner),
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                    "ANNCESTRY_CONFIG": str(self.folder / "config"),
                    **({"XDG_CACHE_HOME": str(self.folder / "cache")} if words[0] == "download" else {}),
                    "ANNCESTRY_MEASURE_LOCK": str(self.folder / "measure.lock"),
                    "FLAT_OUTSIDE": os.pathsep.join(map(str, _own_groups())),
                },
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            enclosure.remove()
        words_said = f"{' '.join(words)} ended with {done.returncode} (-9: out of memory)\n{done.stdout}{done.stderr}"
        assert done.returncode == 0 and told.exists(), words_said
        return Cost(**json.loads(told.read_text()), held_by=enclosure.by.get("memory_mib") or "")

    def prepare(self) -> dict[str, Cost]:
        """Download, normalise, the shards of the truth one after the other, and what gathers them."""
        cell = self.cell
        stages = {"download": cell.download, "normalize": cell.vectors}
        found = {name: self.run(name, key) for name, key in stages.items()}
        parts = range(1, len(self.matrix.truth_parts(cell)) + 1)
        each = [self.run("truth_part", cell.truth, str(part)) for part in parts]
        if each:
            heap_mib = max(cost.heap_mib for cost in each)
            spent = [sum(getattr(cost, name) for cost in each) for name in ("wall_s", "cpu_s")]
            found["truth parts"] = Cost(*spent, heap_mib, each[0].held_by)
        found["truth"] = self.run("truth", cell.truth)
        return found

    def measure(self, answers: int) -> dict[str, Cost]:
        """From the load to the page, and what verifies all of it: with so many answers in all, of real ones repeated.

        The server itself, which holds every row in memory, is not under the limit; load and clients are.
        """
        build.programs()  # the compiler is none of what is held to the limit
        cell, matrix = self.cell, self.matrix
        runs = matrix.runs(cell)
        found = {name: self.run(name, key) for name, key in (("artifact", cell.artifact), ("load", cell.load))}
        found["record"] = self.run("record", cell.load)
        session = [self.run("session-of", str(answers // runs), f"s{run}", str(run), cell.query) for run in range(runs)]
        found["session"] = max(session, key=lambda cost: cost.heap_mib)
        stages = {"query": [cell.query], "recall": [cell.recall], "table": [matrix.table], "report": [matrix.report]}
        for stage, words in {**stages, "verify": []}.items():
            found[stage] = self.run(stage, *words)
        return found

    def answers(self, count: int, k: int = 10, seed: int = 1) -> Path:
        """Samples of two runs with `count` answers in all: of each query the truth, some of it missed."""
        random = np.random.default_rng(seed)
        truth = np.load((self.folder / self.cell.truth_path).with_name("ids.npy"))
        samples = self.folder / "samples.parquet"
        types = {"run": pa.uint8(), "query": pa.uint32(), "status": pa.uint8(), "due_ns": pa.int64()}
        schema = pa.schema({**types, "ids": pa.list_(pa.int64())})
        with parquet.ParquetWriter(samples, schema) as writer:
            for start in range(0, count, _BLOCK):
                number = np.arange(start, min(start + _BLOCK, count))
                query = random.integers(0, len(truth), len(number))
                ids = truth[query, :k]
                missed = random.random(ids.shape) < 0.1
                ids[missed] = random.integers(0, self.rows, int(missed.sum()))
                lists = pa.ListArray.from_arrays(pa.array(np.arange(len(number) + 1, dtype=np.int32) * k), ids.ravel())
                columns = [number * 2 // count, query, np.zeros(len(number)), number]
                arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=False)]
                writer.write_table(pa.Table.from_arrays([*arrays, lists], schema=schema))
        return samples

    def score(self, samples: Path) -> Cost:
        """Their recall."""
        return self.run("score", str(samples), self.cell.truth_path, self.cell.vectors_path)


def _own_groups() -> list[Path]:
    """Where a process id is written to be held by what holds this process, and no more."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            found.append(_GROUPS / controllers / path.lstrip("/") / "cgroup.procs")
    return [file for file in found if file.exists()]


# Within the process


def _score(samples: str, truth_path: str, vectors_path: str) -> None:
    """The body of a recall record, into recall.json."""
    from anncestry.measure import recall

    asked = {"key": "q", "valid": True, "spec": {"workload": {"k": 10, "runs": 2, "name": "made"}}}
    found = recall.score(asked, Path(samples), Path(truth_path), Path(vectors_path))
    Path("recall.json").write_text(json.dumps(found))


def _load(vectors_path: str, key: str) -> None:
    """Every row by an engine's own loop and over gRPC, to a server that keeps nothing."""
    from anncestry.measure.vectors import open_vectors
    from anncestry.progress import Progress
    from tests.flat.engine import ENGINE as flat

    vectors = open_vectors(Path(vectors_path), key)
    system = {"version": "1.0", "settings": {"lie": "keep-nothing"}}
    server = flat.start(Path(), Path("server").resolve(), system, {"nodes": 1})
    try:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = flat.load(server, vectors, {"M": 16}, {"batch_rows": 20_000}, progress)
    finally:
        server.stop()
    assert result.rows_acknowledged == len(vectors.base)


def _hold_twice(vectors_path: str) -> None:
    """What a stage must not do."""
    base = np.load(Path(vectors_path).with_name("base.npy"))
    again = base.copy()
    assert len(again) == len(base)


def _session(answers: str, key: str, run: str, query: str) -> int | None:
    """A session of one cell, whose driver left so many answers: those that it got, over and over again."""
    from anncestry import cli
    from anncestry.drive import protocol
    from anncestry.measure import judge

    one_after_the_other = judge.judge

    def many(measured, context, folder) -> None:
        for job in measured.jobs:
            repeat(job.folder, int(answers))
        one_after_the_other(measured, context, folder)

    def repeat(folder: Path, count: int) -> None:
        found = protocol.read_outcome(folder)
        # One after the other without a pause, however late the first request left.
        took_ns = int((found.samples["due_ns"] + found.samples["latency_ns"]).max() - found.samples["due_ns"].min()) + 1
        bodies = b"".join(found.responses)
        done = json.loads((folder / "done.json").read_text())
        with open(folder / "samples.0.bin", "wb") as samples, open(folder / "responses.0.bin", "wb") as responses:
            responses.write(bodies)
            for number in range(-(-count // len(found.samples))):
                again = found.samples[: count - number * len(found.samples)].copy()
                again["offset"] = np.cumsum(again["size"]) - again["size"]
                again["due_ns"] += number * took_ns
                again["start_ns"] += number * took_ns
                again["latency_ns"] += number % 1000
                samples.write(again.tobytes())
        done["clients"] = [{**done["clients"][0], "samples": count}]
        (folder / "done.json").write_text(json.dumps(done))

    judge.judge = many
    return cli.main(["session", key, run, query])


_STEPS = {"load-rows": _load, "hold-twice": _hold_twice, "score": _score, "session-of": _session}


def _heap_mib() -> int:
    return int(re.search(r"RssAnon:\s+(\d+) kB", _STATUS.read_text())[1]) >> 10  # type: ignore[index]


def main(told: str, *words: str) -> int:
    """Run it, and write its cost."""
    from anncestry import cli

    largest, over = 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not over.wait(_EVERY_S):
            largest = max(largest, _heap_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    try:
        status = _STEPS[words[0]](*words[1:]) if words[0] in _STEPS else cli.main(list(words))
    finally:
        wall_s = time.monotonic() - started
        over.set()
        watcher.join()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    Path(told).write_text(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "heap_mib": largest}))
    return status or 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
