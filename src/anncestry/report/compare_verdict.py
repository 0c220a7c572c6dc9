"""What is said of a number of both sides: the verdicts, their words for each metric, and the line that holds one."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.report.quantities import PHASES

SAME = "same within noise"
SAME_RECORD = "same record"
"""Both sides quote one file: nothing was measured twice."""
EQUAL = "equal"
"""Two measurements with one value, though their noise is unknown."""
UNKNOWN = "noise unknown"
NOT_COMPARABLE = "not comparable"

HEADLINE = (
    *("load_s", "p50_ms", "p95_ms", "p99_ms", "qps", "recall_by_id"),
    *("storage_total_mib", "storage_net_mib"),
)


@dataclass(frozen=True)
class Words:
    """What B is called where its value is less than A's, and where it is more; `better` is -1 for less, 0 neither."""

    less: str
    more: str
    better: int

    def of(self, sign: float) -> str:
        """The word for a difference B - A of this sign."""
        return self.less if sign < 0 else self.more


TIME = Words("faster", "slower", -1)
RATE = Words("slower", "faster", +1)
RECALL = Words("worse", "better", +1)
SIZE = Words("smaller", "larger", -1)
FAILURES = Words("fewer", "more", -1)
AMOUNT = Words("lower", "higher", 0)  # being busy is neither good nor bad


def words_of(metric: str) -> Words:
    """The words for a metric of the tidy table."""
    if metric.startswith("recall_"):
        return RECALL
    if metric.startswith("storage_"):
        return SIZE
    if metric in ("qps", "rows_per_s"):
        return RATE
    if metric in ("errors", "timeouts", "fail_per_s"):
        return FAILURES
    if metric.endswith("_ms") or metric in {f"{phase}_s" for phase in (*PHASES, "load", "upgrade")}:
        return TIME
    return AMOUNT


@dataclass(frozen=True)
class Line:
    """One number of both sides. Values are in `unit`; what is not there is None.

    `ratio` is b / a. `low` and `high` bound b - a with 95 % confidence, in `unit`: Welch's interval over runs, for
    recall Newcombe's over queries. `verdict` is of B against A; `noise` says what it took for noise, empty where none
    is known. `reason` says why there is no better verdict, and `note` what to bear in mind with this one. A system is
    empty where its side has none to set against the other's.
    """

    dataset: str
    topology: str
    workload: str
    system_a: str
    system_b: str
    phase: str
    metric: str
    unit: str
    a: float | None
    b: float | None
    std_a: float | None
    std_b: float | None
    runs_a: int | None
    runs_b: int | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    noise: str
    reason: str
    note: str
    problem_a: str
    problem_b: str
    number_a: str
    number_b: str
    record_a: str
    record_b: str
    record_sha256_a: str
    record_sha256_b: str

    @property
    def decided(self) -> bool:
        """Whether the difference is larger than noise."""
        words = words_of(self.metric)
        return self.verdict in (words.less, words.more)

    @property
    def measured_twice(self) -> bool:
        """Whether both sides measured one and the same thing: under one key, but not in one record."""
        return (
            bool(self.number_a) and self.number_a == self.number_b and self.verdict not in (NOT_COMPARABLE, SAME_RECORD)
        )

    @property
    def better(self) -> str:
        """`a` or `b`, whichever is better by more than noise; empty if neither is."""
        words = words_of(self.metric)
        if not self.decided or not words.better:
            return ""
        return "b" if self.verdict == words.of(words.better) else "a"
