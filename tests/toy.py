"""A toy matrix on the flat engine: 2 datasets × 2 systems × 2 topologies × 2 workloads, and Snakemake run on it."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import yaml

from anncestry import cli, workflow
from anncestry.cells.plan import Job
from anncestry.provenance import explain, records
from tests.waiting import whole

ROOT = Path(__file__).resolve().parents[1]

DATASET = {
    "metric": "l2",
    "rows": 540,
    "queries": 60,
    "dim": 8,
    "content": {},
    "licence": "synthetic",
    "sources": [{"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 600, "centers": 6, "seed": 1}],
}

TOY: dict[str, Any] = {
    "config": {
        "title": "Toy",
        "platform": "default",
        "seed": 7,
        "index": {"type": "hnsw", "M": 16, "ef_construction": 100},
        "ef_search": 50,
        "load": {"batch_rows": 200},
        "disturbance": {"repeats": 0},  # a busy machine makes no test slower
        "chart_files": False,
        "matrix": [
            {
                "datasets": ["blobs-l2", "blobs-cosine"],
                "systems": ["red-1.0", "blue-1.0"],
                "topologies": ["standalone", "cluster-3"],
                "workloads": ["k5", "k5-category"],
            }
        ],
    },
    "datasets": {"blobs-l2": DATASET, "blobs-cosine": {**copy.deepcopy(DATASET), "metric": "cosine"}},
    "systems": {
        "red-1.0": {"engine": "tests.flat", "version": "1.0", "artifact": {"kind": "none"}},
        "blue-1.0": {"engine": "tests.flat", "version": "1.0", "artifact": {"kind": "none"}, "settings": {}},
    },
    "topologies": {
        "standalone": {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1},
        "cluster-3": {"runtime": "native", "nodes": 3, "shards": 1, "replicas": 1},
    },
    "workloads": {
        "k5": {"k": 5, "clients": 1, "runs": 2, "queries": 40, "warmup": 10},
        "k5-category": {
            "k": 5,
            "clients": 1,
            "runs": 2,
            "queries": 40,
            "warmup": 10,
            "filter": {"field": "category", "in": [1, 4, 7]},
        },
        "k7": {"k": 7, "clients": 2, "runs": 1, "queries": 40, "warmup": 10},
    },
    "platforms": {"default": {}},
    "epochs": {
        stage: {"epoch": 1}
        for stage in ("artifact", "download", "normalize", "truth", "load", "query", "recall", "pair")
    },
}


@dataclass
class Toy:
    """A working directory with a config folder of its own."""

    folder: Path
    files: dict[str, Any]

    @classmethod
    def make(cls, folder: Path) -> Toy:
        toy = cls(folder, copy.deepcopy(TOY))
        toy.save()
        return toy

    @classmethod
    def place(cls, folder: Path) -> Toy:
        """One dataset on one system and topology, with both workloads."""
        toy = cls(folder, copy.deepcopy(TOY))
        for names in ("datasets", "systems", "topologies"):
            toy.block[names] = toy.block[names][:1]
        return toy

    @classmethod
    def finished_place(cls, folder: Path) -> Toy:
        """The same, measured to the end."""
        toy = cls.place(folder)
        toy.snakemake()
        return toy

    def save(self) -> None:
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        for name, body in self.files.items():
            (self.folder / "config" / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))

    def copy(self, folder: Path, *parts: str) -> Toy:
        """A clone: the config, and the `parts` (data, results, scratch, reports) that were pulled along."""
        shutil.copytree(self.folder / "config", folder / "config")
        for part in parts:
            if (self.folder / part).exists():
                shutil.copytree(self.folder / part, folder / part, copy_function=shutil.copyfile)
        return Toy(folder, copy.deepcopy(self.files))

    @property
    def block(self) -> dict[str, list[str]]:
        return self.files["config"]["matrix"][0]

    def one_cell(self) -> None:
        """Shrink the matrix to its first cell."""
        for names in self.block.values():
            del names[1:]

    def snakemake(
        self, *arguments: str, check: bool = True, config: tuple[str, ...] = (), modules: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        self.save()
        asked = (f"config_dir={self.folder / 'config'}", *config)
        return run_workflow(self.folder, *asked, arguments=arguments, check=check, modules=modules)

    def command(self, *arguments: str) -> list[str]:
        """Snakemake's command line on this folder."""
        return workflow_command(self.folder, f"config_dir={self.folder / 'config'}", arguments=arguments)

    @staticmethod
    def environment(modules: Path = ROOT) -> dict[str, str]:
        """In which the tests' own engine is found, and what a test keeps in `modules`."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (modules, ROOT, ROOT / "src")))}

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Snakemake at work, in a process group of its own, which is ended with the block; its output in `run.log`."""
        self.save()
        # Where the tests run in the background, SIGINT is ignored, and would be by all that they start.
        ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
        with (
            open(self.folder / "run.log", "w") as log,
            subprocess.Popen(
                self.command(*arguments),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            ) as run,
        ):
            signal.signal(signal.SIGINT, ignored)
            try:
                yield run
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)

    def at_work(self) -> list[str]:
        """Processes that work in this folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            command = " ".join(process.info["cmdline"] or [])
            if str(self.folder) in command or str(process.info["cwd"] or "").startswith(str(self.folder)):
                found.append(f"{process.pid} {command}")
        return found

    def jobs(self) -> dict[str, int]:
        """What would run, by rule, from a dry run."""
        done = self.snakemake("-n")
        return parse_jobs(done.stdout + done.stderr)

    def planned(self) -> dict[str, int]:
        """The same without Snakemake, in a fiftieth of the time: both count alike (tests/cells/test_plan.py)."""
        self.save()
        with chdir(self.folder):
            matrix, made = workflow.resolve(workflow.Choice(self.folder / "config", "default"), Path(), mend=True)
            return counted(explain.jobs(matrix, made))

    def log(self, stage: str) -> str:
        return "\n".join(path.read_text() for path in sorted((self.folder / "logs" / stage).rglob("*.log")))


def workflow_command(folder: Path, *asked: str, arguments: Sequence[str] = ()) -> list[str]:
    """Snakemake's command line in `folder`; `asked`: NAME=VALUE of its --config."""
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "8"),
        *("--directory", str(folder), "--nocolor", *arguments, "all", "--config", *asked),
    ]


def run_workflow(
    folder: Path,
    *asked: str,
    arguments: Sequence[str] = (),
    check: bool = True,
    modules: Path = ROOT,
    timeout_s: float = 2300,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; `check`: it must succeed."""
    done = whole(workflow_command(folder, *asked, arguments=arguments), timeout_s, Toy.environment(modules))
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def stub(path: Path, stage: str, key: str, **body: Any) -> None:
    """A short record, with `body` in it, that is whole to who does not look for more than that."""
    record = {"schema_version": 1, "stage": stage, "key": key, "spec": {}, "inputs": {}, "outputs": {}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records.seal({**record, **body})))


def parse_jobs(text: str) -> dict[str, int]:
    """The table `Job stats:` of Snakemake, without its total; empty when there is nothing to be done."""
    lines = text.splitlines()
    if "Job stats:" not in lines:
        assert "Nothing to be done" in text, text
        return {}
    counts: dict[str, int] = {}
    for line in lines[lines.index("Job stats:") + 3 :]:
        found = re.match(r"^(\w+)\s+(\d+)$", line)
        if not found:
            break
        counts[found[1]] = int(found[2])
    assert counts.pop("total") == sum(counts.values())
    return counts


def anncestry(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`anncestry WORDS` in a folder with a config, within this process: a command costs no start of Python."""
    out, err = io.StringIO(), io.StringIO()
    choice = {"ANNCESTRY_CONFIG": str(folder / "config")}
    with patch.dict(os.environ, choice), chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            status = cli.main([*words])
        except SystemExit as refused:  # words that the parser does not know
            status = int(refused.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def counted(jobs: Sequence[Job]) -> dict[str, int]:
    """Jobs by rule as Snakemake's dry run counts them: with one `all` if there is any."""
    return {**Counter(job.rule for job in jobs), **({"all": 1} if jobs else {})}
