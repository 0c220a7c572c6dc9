"""Why a number is not there: the reasons, and which of them say something against its record."""

from __future__ import annotations

from anncestry.report.quantities import PHASES, Body, Metric, at, upgraded

NOT_MEASURED = "not measured"
LOAD_MISSING = "its load was not measured"
QUERIES_MISSING = "its queries were not measured"
MISSING = frozenset({NOT_MEASURED, LOAD_MISSING, QUERIES_MISSING})
"""The reasons for having no number that mean: nobody has measured it yet."""

NOT_RECORDED = "not recorded"
NO_SUCH_PHASE = "no such phase"
NO_FILTER = "no filter"
UPGRADED = "not measured: upgraded in place"
NOT_OURS = "somebody else's server"
NOT_IN_EACH_RUN = "not within each run"
NO_ANSWER = "no answer in a run"
OF_FAULTS = {"fault_recovered_s": NOT_IN_EACH_RUN, "fault_whole_s": NOT_IN_EACH_RUN, "fault_recall_during": NO_ANSWER}
"""What it means that a run with a fault has not the number: the system did not recover in time, or answered nothing."""
ABSENT = frozenset({NOT_RECORDED, NO_SUCH_PHASE, NO_FILTER, UPGRADED, NOT_OURS, *OF_FAULTS.values()})
"""The reasons that say nothing against a record. Any that is neither here nor in MISSING makes it invalid."""

UNREACHED = "target not reached: "
LOAD_INVALID = "its load is invalid: "


def brief(reason: str) -> str:
    """Why there is no number, in two or three words; a failed gate's full reason stands in the list of them."""
    if reason in MISSING:
        return NOT_MEASURED
    if reason == UPGRADED:
        return "upgraded in place"
    if reason.startswith(UNREACHED):
        return "not reached"
    return reason if reason in ABSENT else "invalid"


def why_absent(body: Body, metric: Metric) -> str:
    """Tell a phase that a system does not have, and a filter that wasn't asked, from what the record lacks."""
    if upgraded(body) and (metric.phase in (*PHASES, "load")):
        return UPGRADED
    if metric.at[0] in ("storage", "resources") and remote(body):
        return NOT_OURS
    if metric.phase in PHASES and at(body, ("times", f"{metric.phase}_s")) is None:
        return NO_SUCH_PHASE
    if metric.name == "selectivity" and not at(body, ("spec", "workload", "filter")):
        return NO_FILTER
    if metric.name == "max_rate_per_s":
        return UNREACHED + str(at(body, ("slo", "reason")))
    return OF_FAULTS.get(metric.name, NOT_RECORDED)


def remote(body: Body) -> bool:
    """Whether somebody else runs the server, so that its disk and processes are not to be seen."""
    members = at(body, ("server", "members")) or {}
    return any(at(facts, ("run_by",)) for facts in members.values())
