"""A run of a cell while it is measured, its samples once published, and what features of its workload do in it."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import large
from anncestry.cells import features
from anncestry.cells.indexes import effort_of
from anncestry.datasets.distance import Bools, Floats, Ids
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.engines.base import Engine, Server
from anncestry.errors import ConfigError
from anncestry.measure import requests, samples
from anncestry.measure.reference import Reference
from anncestry.measure.server import System
from anncestry.measure.tune import Tuned
from anncestry.measure.vectors import Choice, Filtering, Vectors
from anncestry.metrics import latency, resources
from anncestry.provenance.gates import Gate


@dataclass
class Job:
    """What the driver did at once: a whole run, or a probe of one that searches for a rate.

    `window_s` are its start and end on the clock of `time.monotonic`; `rate_per_s` None for a closed loop.
    """

    number: int
    folder: Path
    window_s: tuple[float, float]
    rate_per_s: float | None = None


def _told(jobs: Sequence[Job]) -> dict[str, float]:
    """What a measurement gave: good answers, seconds, and the 99th percentile of the time until an answer, or none."""
    left = [protocol.open_outcome(job.folder) for job in jobs]
    waited_ns = np.sort(np.concatenate([each.column("latency_ns") for each in left]))
    p99_ms = float(waited_ns[large.rank(len(waited_ns), 0.99)] / 1e6) if len(waited_ns) else 0.0
    answers = sum(int((each.column("status") == OK).sum()) for each in left)
    return {"answers": answers, "seconds": sum(job.window_s[1] - job.window_s[0] for job in jobs), "p99_ms": p99_ms}


@dataclass
class Run:
    """One run of one cell while it is measured."""

    key: str
    spec: Mapping[str, Any]
    number: int
    folder: Path
    choice: Choice
    members: Ids = field(default_factory=lambda: np.empty((0, 1), np.int64))
    """Which vectors (of `choice`, the measured ones first) each request asks for: (requests, nq)."""
    encode_us: float = 0.0
    """How long a request's bytes took to make, before the clock."""
    filtering: Filtering | None = None
    tuned: Tuned | None = None
    jobs: list[Job] = field(default_factory=list)
    afterwards: list[Gate] = field(default_factory=list)
    """What its server was like after it."""
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What each member of the server counted meanwhile, the warm-up included: member → name → count."""
    failure: str | None = None
    ceiling: dict[str, Any] | None = None
    disturbance: dict[str, Any] = field(default_factory=dict)
    """What disturbed it (`metrics.disturbance`)."""
    repeats: int = 0
    """How often it was measured again, as it was disturbed."""
    discarded: list[dict[str, float]] = field(default_factory=list)
    """What each of these measurements that don't count gave."""

    def again(self) -> None:
        """Forget what was measured, which was disturbed, but for what it gave: that is told beside what counts."""
        self.discarded.append(_told(self.counted))
        for job in self.jobs:
            shutil.rmtree(self.folder / f"job{job.number}")
        self.jobs, self.counters, self.repeats = [], {}, self.repeats + 1
        vars(self).pop("features", None)

    @property
    def workload(self) -> Mapping[str, Any]:
        return self.spec["workload"]  # type: ignore[no-any-return]

    @cached_property
    def features(self) -> list[Measuring]:
        """What the features of its workload do in it."""
        return [measuring(self) for measuring in measuring_of(self.workload)]

    @cached_property
    def own_server(self) -> bool:
        """Whether the run has a server of its own, which has answered nothing before."""
        return any(feature.own_server for feature in features.of(self.workload))

    @cached_property
    def spends_server(self) -> bool:
        """Whether the server can't be used for another run afterwards: its data or members may be other ones."""
        return any(feature.spends_server for feature in features.of(self.workload))

    @cached_property
    def members_may_fail(self) -> bool:
        """Whether members of the server may be gone after it."""
        return any(feature.members_may_fail(self.workload) for feature in self.features)

    @property
    def requests(self) -> tuple[int, int]:
        """How many requests are measured, and how many after them only warm up."""
        measured = int((self.members[:, 0] < len(self.choice.measured)).sum())
        return measured, len(self.members) - measured

    @property
    def ef_search(self) -> int:
        """The search effort: what the workload asks for, or what was found for its target recall; 0 where none is."""
        return self.tuned.ef_search if self.tuned is not None else effort_of(self.workload)

    @property
    def window_s(self) -> tuple[float, float]:
        """From the first job's start to the last one's end."""
        return self.jobs[0].window_s[0], self.jobs[-1].window_s[1]

    @property
    def counted(self) -> Sequence[Job]:
        """The jobs that its numbers are of, one after the other: all, unless a feature chooses some."""
        chosen = (feature.counted() for feature in self.features)
        return next((jobs for jobs in chosen if jobs is not None), self.jobs)

    @property
    def counted_s(self) -> tuple[float, float]:
        """The window of these."""
        return self.counted[0].window_s[0], self.counted[-1].window_s[1]


@dataclass
class Context:
    """What the runs of a session have in common, complete once it is over.

    The index is `lossy` if it holds codes, so that distances are estimates, and `scanned` if the exact-search oracle
    had to scan those: then `gates` judge estimates, too, of all rows that match a filter. `gates` judge the server,
    `settings` its settings at each search effort, `batched` its answers to requests of each number of vectors beside
    one, `filtered` its searches under each workload's filters (by their repr). `counted` holds the server's own counts
    of what passes a filter (by the filter's repr), `facts` goes into every record, `inputs` names its sources.
    """

    engine: Engine
    vectors: Vectors
    lossy: bool
    scanned: bool
    gates: list[Gate] = field(default_factory=list)
    settings: dict[int, list[Gate]] = field(default_factory=dict)
    batched: dict[int, list[Gate]] = field(default_factory=dict)
    filtered: dict[str, list[Gate]] = field(default_factory=dict)
    reference: Reference | None = None
    counted: dict[str, int] = field(default_factory=dict)
    resources: pa.Table | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class Findings:
    """What a feature adds to the record of a run: gates, errors of requests by text, facts, and files by label."""

    gates: list[Gate] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, pa.Table] = field(default_factory=dict)


@dataclass
class Published:
    """The runs of a cell together: to make their record of `runs` (those of each), or to verify the one `stored`."""

    workload: Mapping[str, Any]
    files: Mapping[str, Path]
    """The joined files of the runs, by label: samples, resources, and those of features."""
    runs: Sequence[Mapping[str, Any]] = ()
    stored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self.runs) or runs_of(self.stored)

    @cached_property
    def by_run(self) -> samples.Runs:
        return samples.by_run(self.files["samples"], self.workload)

    @cached_property
    def of_runs(self) -> list[latency.Run]:
        """The samples of each run that its numbers are of: all, unless a feature chooses some."""
        for measuring in measuring_of(self.workload):
            chosen = measuring.samples(self)
            if chosen is not None:
                return chosen
        return [samples.of(self.by_run, self.workload, number) for number in range(self.count)]

    @cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        return latency.summarise(self.of_runs)

    @property
    def server_cpu_us_per_query(self) -> dict[str, Any]:
        """Over runs: the server's CPU from right before the clock until right after it, by good answers.

        Of the jobs that the numbers are of.
        """
        table = self.table("resources")
        windows = [run["window_s"] for run in self.runs] or self.stored["windows_s"]
        each = []
        for number, window in enumerate(windows):
            answered = int((self.of_runs[number].status == OK).sum())
            of_run = table.filter(pa.compute.equal(table["run"], number))
            cpu_s = resources.cpu_between_edges(of_run, "server", window)
            each.append(1e6 * cpu_s / answered if answered else math.nan)
        return latency.over_runs(each)

    def facts(self, part: str) -> list[Mapping[str, Any]]:
        """A feature's facts of each run: from the records of the runs, or from "runs" in that part of the record."""
        return [run[part] for run in self.runs] if self.runs else list(self.stored[part]["runs"])

    def table(self, label: str) -> pa.Table:
        return parquet.ParquetFile(self.files[label]).read()


def runs_of(measured: Mapping[str, Any]) -> int:
    """How many runs a query record is of."""
    workload = measured["spec"]["workload"]
    return int(workload["runs"] if "runs" in workload and "so_far" not in measured else len(measured["rounds"]))


class Scoring:
    """How a feature changes the scoring of answers. These defaults change nothing."""

    columns: tuple[str, ...] = ()
    """Columns of the samples that it reads beside run, query, status, ids and due_ns."""
    at_once = False
    """Whether it needs all samples in one table."""
    of_loaded = False
    """Whether what it scores was asked of the rows that were loaded, all of them, so that their truth is its own."""

    def choose(self, table: pa.Table) -> pa.Table:
        """The samples to be scored."""
        return table

    def score(self, table: pa.Table, ids: Ids, runs: NDArray[np.integer[Any]]) -> Mapping[str, Floats] | None:
        """Scores of these samples by name, (n,) each, if they are not those against the truth of what was loaded."""
        return None

    def add(self, runs: NDArray[np.integer[Any]], due_s: Floats, answered: Bools, scores: Mapping[str, Floats]) -> None:
        """Look at the scores of some answers, (n,) each."""

    def body(self, means: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Its part of the recall record; `means` are the scores over runs, by name."""
        return {}


class Measuring:
    """What a feature of a workload does in one run, an object a run, in the order of its methods. All do nothing.

    Class methods work on the runs of a cell together.
    """

    rows_added: int = 0
    """Rows that it inserted: ids after those that were loaded."""
    described: ClassVar[str] = ""
    """What verify calls its part of the record, if not by its name."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def members_may_fail(cls, workload: Mapping[str, Any]) -> bool:
        """Whether members of the server may be gone after a run of this workload."""
        return False

    def prepare(self, data_dir: Path) -> None:
        """Look at a fresh copy of the loaded data; only if the feature needs an `own_server`, before that starts."""

    def opened(self, start_s: float, open_s: float) -> None:
        """Note how long the `own_server` took to start, and then to open the data."""

    def run_jobs(self, drive: Callable[[float | None], Job], engine: Engine) -> bool:
        """Have the driver run jobs at rates (None: a closed loop); False leaves the run its one closed loop.

        `engine` decodes the answers to a job, for a feature that decides by them.
        """
        return False

    def counted(self) -> Sequence[Job] | None:
        """The jobs that the numbers of the run are of, one after the other, once all have run; None: all."""
        return None

    def before(self, system: System, server: Server) -> None:
        """Do what comes right before the jobs of the run."""

    def beside(self, system: System, server: Server, folder: Path) -> list[str]:
        """Write jobs of the driver below `folder`, to run together with the queries; returns their names."""
        return []

    def check(self, server: Server) -> Callable[[], None] | None:
        """What the driver calls all the time while the job runs, if not the server's own `check_alive`."""
        return None

    def ready(self) -> None:
        """Note that all clients are connected and warm: in a moment, the clock of the job starts."""

    def abandon(self) -> None:
        """End what it does beside a job that has failed."""

    def after(self, system: System, server: Server, zero_s: float) -> None:
        """Do what comes right after a job whose clock began at `zero_s` (of `time.monotonic`)."""

    def judge(self, context: Context, findings: Findings) -> None:
        """Add to the record of the run, once the server is stopped."""

    @classmethod
    def samples(cls, published: Published) -> list[latency.Run] | None:
        """The samples of each run that its numbers are of; None: all."""
        return None

    @classmethod
    def summarise(cls, published: Published) -> Mapping[str, Any]:
        """Its parts of the query record, by name: from samples, files, and `Published.facts`."""
        return {}

    @classmethod
    def again(cls, published: Published) -> Iterator[tuple[str, Any, Any]]:
        """What to report if they differ, what the stored record holds, and what its samples give."""
        for part, value in cls.summarise(published).items():
            yield f"{cls.described or f'its {part}'} does not match its samples", published.stored.get(part), value

    @classmethod
    def scoring(cls, measured: Mapping[str, Any], samples_path: Path, truth: Any) -> Scoring | None:
        """How it changes the scoring of a query record's answers against the `recall.Truth`; None: not at all."""
        return None


def measuring_of(workload: Mapping[str, Any]) -> list[type[Measuring]]:
    """What the features of a workload do in runs."""
    found = []
    for feature in features.of(workload):
        measuring = features.measuring(feature)
        if measuring is None:
            continue
        if not (isinstance(measuring, type) and issubclass(measuring, Measuring)):
            raise ConfigError(f"workload: {feature.name}'s MEASURING is no Measuring (docs/adding-a-feature.md)")
        found.append(measuring)
    return found


def open_samples(job: Job, run: Run, engine: Engine) -> tuple[latency.Run, float]:
    """The samples of a job that is over, and the driver's own delay (p99, ms).

    Their status is that of the decoded answers: a server may answer with an error, and the driver does not know.
    """
    outcome, work = protocol.open_outcome(job.folder), run.workload
    read, nq = requests.decoder(engine, work), requests.nq_of(work)
    status = [np.empty(0, np.uint8)]
    for part, responses in outcome.parts():
        answered = requests.decode(read, responses, part["status"], work["k"], run.spec["dataset"]["metric"], nq)
        status.append(answered.status[::nq])
    due_ns, latency_ns = (outcome.column(name) for name in ("due_ns", "latency_ns"))
    samples_of = latency.Run(due_ns, latency_ns, np.concatenate(status), work["duration_s"])
    return samples_of, outcome.facts["lag_p99_ms"]


def counted_jobs(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The driver's facts of the jobs that the numbers of a run are of, from its record."""
    both = zip(run["jobs"], run["client"]["jobs"], strict=True)
    return [facts for job, facts in both if job.get("counted", True)]
