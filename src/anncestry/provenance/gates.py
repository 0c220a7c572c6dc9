"""Gates: conditions without which a record is invalid, listed with its reason, and never a number in a table.

Thresholds are part of what measuring means (they change with the epoch), not a setting: a number that needs a lower
bar is not a better number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ORACLE_RECALL_MIN = 0.999
"""Recall of searches that the system answers by a flat scan: only rounding among ties is forgiven."""
ORACLE_SHORT_MAX = 0.05
"""Share of the oracle's queries that may get too few rows, of a system that never scans."""
ORDER_Z = 1.6448536269514722
"""Quantile .95 of the standard normal distribution: an answer is nearer than what it leaves out, not by chance."""
ORDER_SHARE_MIN = 0.95
"""Share of answers of an index of codes that must be; of answers in no order by distance, 1 in 20 is."""
ROW_COUNT, ORACLE, LITTLE = "row count", "exact-search oracle", "Little's law"
"""Names of gates that are asked for."""
LOOK_ERROR = 0.0025
"""How often a look at sampled rows may call a sound index lossy: 1 % of the cells of a load and three rounds."""
FINDABLE_MIN, FINDABLE_MIN_ALONE = 0.995, 0.97
"""Share of rows that an index search for the row's own vector finds, or what the reference finds less .005; and the
lower one of either part of the rows, and where no reference tells a hard dataset from a lossy system. Of 600 sampled
rows 10 (32) missing ones contradict it: an index that finds .995 (.97) fails one look in 940 (650), and one that finds
.97 (.93) is caught in 98.6 % (95.8 %) of the looks."""
LOOK_Z = 2.807
"""The same as a quantile of the standard normal distribution."""
FINDABLE_TAIL_DROP_MAX = 0.05
"""How much rarer the rows inserted last may be found: a lost tail of the index shows here, while counts are right."""
DISTANCE_REL_ERROR_MAX = 1e-3
"""Difference of a reported distance from the exact one, relative to it (float32 sums of up to 65,535 terms)."""
CONTRADICTIONS_MAX = 0.01
"""Share of answers that are none of the protocol, or that hold rows which the filter excludes. Above it, something else
was asked or answered; below it, these are failures and defects, which stand beside the numbers."""
ESTIMATE_REL_ERROR_MAX = 0.25
"""The same of distances that an index estimates from codes, at the median: enough to tell a metric from another."""
REFERENCE_MISSES, REFERENCE_MARGIN = 3.0, 0.02
"""A system may miss 3 times as many neighbours as the reference index and .02 more: implementations differ in how they
prune links, in segments and shards, and in random levels, which all is worth less than a factor of 2 in ef."""
EF_CHANGES = 20
"""Of 100 answers of the reference, so many change with ef: then one of the system's must."""
REPEATED_RATIO, REPEATED_SHARE = 5.0, 0.9
"""Answers to queries that were asked before come so much faster, at the median, and for 9 of 10 at least twice as fast:
no warm cache of data does that to queries among others, half of which are new."""
FILTERED_FINDABLE_MIN = 0.9
"""Under a workload's own filter, of a system that never scans: its search may miss rows as a graph does, but a filter
that excludes a category of three misses a third."""
PROBE_LEAST, PROBE_MOST, PROBE_FREE = 0.8, 1.1, 1.5
"""Of the reads that a storage path's limits allow: what a probe within them reaches, and one without them at least."""
PROBE_EVEN = 2.0
"""Of the mean time of a probe's reads: what 95 % of them take at most, if the path's pacing is even."""
LATENCY_LEAST, LATENCY_MOST, LATENCY_SLACK_MS = 0.9, 1.1, 0.1
"""Of the latency that a storage path adds: how much longer a probe's median read takes, and what waking up may take."""
_STORAGE_LIMITS = {"read_mib_per_s": ("io_read_mib", "MiB"), "read_ops_per_s": ("io_reads", "reads")}
"""By limit of a storage path, what of its device is held against it."""
STORAGE_SLACK, STORAGE_SLACK_S = 0.05, 0.25
"""How much more than its limits, and for how much longer, a storage path may have been read in a run."""
IDLE_SHARE_MAX, IDLE_PER_REQUEST_US, LITTLE_REQUESTS_MIN = 0.02, 50.0, 20
"""Little's law: the share of a client's time between its requests, and how long that may always be on average (the
Python driver needs some µs, beside a library that answers in 30); fewer requests say nothing."""

_FEW = f"{CONTRADICTIONS_MAX:.0%}"


@dataclass(frozen=True)
class Gate:
    """One condition, whether it holds, and what was found, in words that stand alone."""

    gate: str
    ok: bool
    detail: str


def verdict(gates: Sequence[Gate]) -> dict[str, Any]:
    """The part of a record that says whether it is valid and why."""
    return {"valid": all(gate.ok for gate in gates), "gates": [asdict(gate) for gate in gates]}


def row_count(rows: int, expected: int, when: str) -> Gate:
    """The server's own count equals the dataset's rows."""
    return Gate(ROW_COUNT, rows == expected, f"{rows} of {expected} rows {when}")


def inserts(sent: int, acknowledged: int, errors: int, expected: int, first_error: str | None) -> Gate:
    """Every row was sent once and acknowledged; none failed."""
    ok = sent == acknowledged == expected and errors == 0
    detail = f"{sent} rows sent, {acknowledged} acknowledged, {errors} failed, of {expected}"
    return Gate("inserts", ok, detail + (f"; first: {first_error}" if first_error else ""))


def index_complete(complete: bool, detail: str) -> Gate:
    """The system says that its index covers every row."""
    return Gate("index complete", complete, detail)


def settings(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> Gate:
    """What was asked for is what the server says it does."""
    values = ((name, effective.get(name), value) for name, value in asked.items())
    wrong = [f"{name} is {found!r}, asked {value!r}" for name, found, value in values if found != value]
    return Gate("settings", not wrong, "; ".join(wrong) or f"{len(asked)} settings read back as asked")


def topology(
    declared: Mapping[str, Any], nodes: int, shards: int, replicas: int, holders: Mapping[str, int] | None = None
) -> Gate:
    """Nodes, shards and replicas that the server reports are the declared ones, and no node is idle.

    `holders` is how many shards (or segments) each node holds, where the system says it.
    """
    probed = {"nodes": nodes, "shards": shards, "replicas": replicas}
    wrong = [f"{name} {probed[name]}, declared {declared[name]}" for name in probed if declared[name] != probed[name]]
    shown = ", ".join(f"{count} {name}" for name, count in probed.items())
    if holders:
        shown += "; " + ", ".join(f"{node} holds {count}" for node, count in sorted(holders.items()))
        if len(holders) < declared["nodes"]:
            wrong.append(f"only {', '.join(sorted(holders))} hold data, of {declared['nodes']} nodes")
    return Gate("topology", not wrong, "; ".join(wrong) or f"probed: {shown}")


def copies(counted: int, rows: int, replicas: int) -> Gate:
    """What the nodes count, each for itself, adds up to every row as often as there are replicas."""
    detail = f"{counted} rows on all nodes together, {replicas} × {rows} wanted"
    return Gate("copies", counted == rows * replicas, detail)


def members(members: Mapping[str, Mapping[str, Any]], problem: str | None, when: str) -> Gate:
    """Every member runs, and the system itself misses none: a cluster may answer without what a dead node held."""
    dead = sorted(name for name, facts in members.items() if not facts["alive"])
    detail = problem or (f"{', '.join(dead)} not running" if dead else f"all of {', '.join(members) or 'them'} alive")
    return Gate("members alive", problem is None and not dead, f"{detail} {when}")


def shared(searches: Mapping[str, float], clients: int) -> Gate | None:
    """Every node that counts its searches was sent some, where at least as many clients asked as there are nodes.

    With fewer, a balancer may well leave a node without work: that is told, not judged. `searches` by node, warm-up
    included; None where fewer than two nodes count.
    """
    if len(searches) < 2:
        return None
    idle = sorted(node for node, count in searches.items() if not count)
    counts = ", ".join(f"{node} {count:.0f}" for node, count in sorted(searches.items()))
    unused = f"; idle: {', '.join(idle)}" if idle else ""
    return Gate("searches shared", not idle or clients < len(searches), f"searches by node: {counts}{unused}")


def not_asked(failed: str, why: str) -> Gate:
    """That nobody could ask a server after its queries, as a later run failed on it: told, not judged."""
    return Gate("asked after the queries", True, f"not asked: {why} in a later run ({failed})")


def limits(members: Mapping[str, Mapping[str, Any]]) -> Gate | None:
    """Every limit asked is enforced, is the one asked where it can be read back, and killed no member for its memory.

    How each limit is enforced is said; None where none was asked.
    """
    limited = {name: facts["limits"] for name, facts in members.items() if facts.get("limits")}
    if not limited:
        return None
    asked = [(name, limit, how) for name in sorted(limited) for limit, how in sorted(limited[name].items())]
    lines = [f"{name}: {limit} {how['asked']} by {how['by'] or 'nothing: not enforced'}" for name, limit, how in asked]
    wrong = [each for each in asked if each[2].get("effective", each[2]["asked"]) != each[2]["asked"]]
    problems = [f"{limit} of {name} is {how['effective']}" for name, limit, how in wrong]
    unmet = [f"{limit} of {name}" for name, limit, how in asked if how["by"] is None and "effective" not in how]
    if unmet:
        problems.append(f"nothing holds {', '.join(unmet)} (docs/topologies.md, Limits, says what can)")
    if killed := [name for name, facts in members.items() if facts.get("usage", {}).get("oom_kills")]:
        problems.append(f"killed for memory: {', '.join(killed)}")
    return Gate("limits", not problems, "; ".join([*lines, *problems]))


def storage_path(name: str, on_mib: float, elsewhere_mib: float, mapped_mib: float | None, mapped: bool) -> Gate:
    """Vectors, metadata and index lie on the declared storage path and nowhere else.

    `mapped`: a setting says that files there are mapped into memory; then some must be (`mapped_mib`, None: not to be
    seen).
    """
    detail = f"{on_mib:.1f} MiB of vectors, metadata and index on {name}, {elsewhere_mib:.1f} MiB elsewhere"
    if mapped:
        detail += "; mapped into memory: " + ("not to be seen" if mapped_mib is None else f"{mapped_mib:.1f} MiB of it")
    ok = on_mib > 0 and elsewhere_mib == 0 and (not mapped or bool(mapped_mib))
    return Gate("storage path", ok, detail)


def storage_probe(probe: Mapping[str, Any]) -> Gate:
    """A probe within the limits of a storage path reads as fast as they allow and no faster; without them, faster.

    Where pacing is even, 95 % of the reads within the limits take at most PROBE_EVEN times their mean. A probe of added
    latency says that no read takes less, and that the median read takes so much longer.
    """
    if probe["of"] == "latency_us":
        return _storage_latency(probe)
    allowed, held, free = (float(probe[name]) for name in ("allowed_per_s", "held_per_s", "free_per_s"))
    ok = PROBE_LEAST * allowed <= held <= PROBE_MOST * allowed and free >= PROBE_FREE * allowed
    detail = (
        f"reads of {probe['read_bytes']} bytes at once: {held:.0f}/s within {probe['of']} ({PROBE_LEAST:g} to "
        f"{PROBE_MOST:g} of {allowed:.0f} are asked), {free:.0f}/s without (at least {PROBE_FREE:g} of it are asked)"
    )
    if "pacing" in probe:
        mean_ms, p95_ms = float(probe["held_mean_ms"]), float(probe["held_p95_ms"])
        ok = ok and p95_ms <= PROBE_EVEN * mean_ms
        detail += f"; p95 {p95_ms:.1f} ms, mean {mean_ms:.1f} ms (p95 at most {PROBE_EVEN:g} means is asked)"
    return Gate("storage limits, probed", ok, detail)


def _storage_latency(probe: Mapping[str, Any]) -> Gate:
    plain_ms, held_ms, least_ms = (float(probe[name]) for name in ("plain_p50_ms", "held_p50_ms", "held_least_ms"))
    latency_ms, added_ms = probe["latency_us"] / 1000, held_ms - plain_ms
    low_ms, high_ms = LATENCY_LEAST * latency_ms, LATENCY_MOST * latency_ms + LATENCY_SLACK_MS
    detail = (
        f"reads of {probe['read_bytes']} bytes one after another: {added_ms:.3f} ms more at the median than the "
        f"{plain_ms:.3f} ms without added latency ({low_ms:.3f} to {high_ms:.3f} ms are asked), none below "
        f"{least_ms:.3f} ms (at least {latency_ms:.3f} ms are asked)"
    )
    return Gate("storage latency, probed", low_ms <= added_ms <= high_ms and least_ms >= latency_ms, detail)


def storage_limits(
    asked: Mapping[str, float], device: Mapping[str, float] | None, name: str = "storage limits"
) -> Gate:
    """The storage path's own counters say that no more was read in a run, or a part of it, than its limits allow.

    `device` is what `metrics.resources.of_device` says of it. STORAGE_SLACK of a limit, and what it allows in
    STORAGE_SLACK_S, are forgiven: the kernel releases what may be read in slices, of which one may begin before a run.
    """
    if device is None:
        return Gate(name, False, "the storage path's device was not counted")
    lines, ok = [], True
    for limit, (counter, unit) in _STORAGE_LIMITS.items():
        if limit in asked:
            most = asked[limit] * (1 + STORAGE_SLACK) * (device["wall_s"] + STORAGE_SLACK_S)
            ok = ok and device[counter] <= most
            lines.append(f"{device[counter]:.1f} {unit} in {device['wall_s']:.2f} s, at most {most:.1f} by {limit}")
    return Gate(name, ok, "; ".join(lines))


def version(expected: str, found: str) -> Gate:
    """The running server calls itself the version that the spec names."""
    return Gate("server version", expected == found, f"server says {found}, spec {expected}")


def artifact(expected: str, found: str) -> Gate:
    """What runs is what was loaded with, byte for byte."""
    other = "" if expected == found else f", loaded with {expected[:12]}…"
    return Gate("artifact digest", not other, f"sha256 {found[:12]}…{other}")


def stopped(clean: bool, signal: str | None, seconds: float, returncode: int) -> Gate:
    """The loaded server ended when asked to: one that has to be killed, or crashes, may lose what it had not written.

    `returncode` is negative for one that was ended by that signal.
    """
    how = f"ended {seconds:.1f} s after {signal or 'it was to be stopped'}"
    if not clean and signal == "SIGKILL":
        how = f"did not end when asked to, and was killed after {seconds:.1f} s: what it had not written is lost"
    elif not clean:
        by = f"by signal {-returncode}" if returncode < 0 else f"with {returncode}"
        how = f"ended by itself ({by}), not as it was asked to: what it had not written is lost"
    return Gate("stopped cleanly", clean, how)


def oracle(recall: float | None, queries: int, selectivity: float, short: int = 0) -> Gate:
    """Searches under a narrow filter, answered by a flat scan, return exactly the true neighbours.

    Of a system that never scans, `short` of the queries got too few rows, and `recall` is that of the others: a graph
    that leads nowhere under a filter has lost no row, and the recall of a workload charges it.
    """
    ok = recall is not None and recall >= ORACLE_RECALL_MIN and short <= ORACLE_SHORT_MAX * queries
    shown = "no answer" if recall is None else f"recall {recall:.4f}"
    detail = (
        f"{shown} over {queries - short} queries at selectivity {selectivity:.4f}, at least {ORACLE_RECALL_MIN} wanted"
    )
    if short:
        detail += f"; {short} others got too few rows, at most {ORACLE_SHORT_MAX:.0%} may, without a scan"
    return Gate(ORACLE, ok, detail)


def oracle_of_codes(recall: float, nearer: int, returned: int, wanted: int, queries: int, selectivity: float) -> Gate:
    """Searches under a narrow filter, answered by a flat scan over codes, return rows that pass it, by distance.

    `returned` different rows that pass it, of `wanted`; `nearer` is how many of the queries were answered by rows
    nearer than those left out, beyond chance. `recall` of the true neighbours is said, not judged: how well codes tell
    rows apart is what the published recall says.
    """
    return Gate(
        ORACLE,
        returned == wanted and nearer >= ORDER_SHARE_MIN * queries,
        f"{returned} of {wanted} results pass the filter; nearer than what was left out, beyond chance, in {nearer} of "
        f"{queries} queries at selectivity {selectivity:.4f}, {ORDER_SHARE_MIN:.0%} wanted (an index of codes: "
        f"{recall:.3f} of the true neighbours are among five times as many)",
    )


def complete(found: int, matching: int, others: int, filters: int, scans: bool = True) -> Gate:
    """Searches for more results than pass a filter return every row that does, and no other: a scan by searching.

    A lost row can't hide behind a right count here; and of an index of codes, codes have no say. A system that never
    `scans` may leave rows out, which recall tells: then as many must be found as not to contradict, by a binomial test,
    that it finds .9 of them.
    """
    detail = f"{found} of {matching} rows returned, and {others} others, under {filters} filters that few rows pass"
    enough = found == matching if scans else not _fewer(found, matching, FILTERED_FINDABLE_MIN)
    return Gate("all rows that match", enough and others == 0, detail if scans else f"{detail}, without a scan")


def _fewer(found: int, rows: int, share: float, of_reference: int | None = None) -> bool:
    """Whether so few of the sampled rows are found that this `share` of all rows can't well be (LOOK_ERROR).

    A one-sided binomial test. `of_reference`: how many of these rows the reference finds; the share is then that of the
    reference, less 1 - `share`, and as it is an estimate itself, the difference must stand out of both errors.
    """
    if not rows:
        return False
    lost, missed = 1 - share, rows - found
    of_both = 0.0
    if of_reference is not None:
        theirs = 1 - of_reference / rows
        lost = min(0.5, lost + theirs)
        of_both = rows * lost + LOOK_Z * math.sqrt(rows * (lost * (1 - lost) + theirs * (1 - theirs)))
    fewer = sum(math.comb(rows, i) * lost**i * (1 - lost) ** (rows - i) for i in range(missed))
    return missed > of_both and 1 - fewer < LOOK_ERROR


def findable(
    body: int,
    tail: int,
    body_rows: int,
    tail_rows: int,
    behind: int | None = None,
    reference: tuple[int, int] | None = None,
    comparable: bool = False,
) -> Gate:
    """Rows are found by their own vector through the index, the last inserted as well as the others.

    `body` of the `body_rows` and `tail` of the `tail_rows` last inserted are. `behind` of them, of an index of codes,
    are not among the results, but the index tells no others from them that are. `reference` is how many of both the
    reference finds, if it was asked; `comparable` says that it can be.
    """
    parts = (body, body_rows), (tail, tail_rows)
    theirs = reference or (None, None)
    least = FINDABLE_MIN if comparable else FINDABLE_MIN_ALONE
    fewer = _fewer(body + tail, body_rows + tail_rows, least, None if reference is None else sum(reference))
    fewer |= any(_fewer(*part, FINDABLE_MIN_ALONE, of) for part, of in zip(parts, theirs, strict=True))
    share = [found / rows if rows else 1.0 for found, rows in parts]
    drop = share[0] - share[1]
    if reference is not None and body_rows and tail_rows:  # the last rows may be harder to find for any graph
        drop -= max(0.0, reference[0] / body_rows - reference[1] / tail_rows)
    ok = not fewer and drop <= FINDABLE_TAIL_DROP_MAX
    detail = f"{share[0]:.3f} of {body_rows} sampled rows and {share[1]:.3f} of {tail_rows} of the last inserted found"
    or_behind = f", or ({behind}) behind rows that their codes put as near (an index of codes)"
    said = (
        "" if reference is None else f"; the reference index finds {sum(reference) / max(1, body_rows + tail_rows):.3f}"
    )
    return Gate("rows findable", ok, f"{detail} by their own vector{'' if behind is None else or_behind}{said}")


def findable_filtered(found: int, rows: int, excluded: int | None) -> Gate:
    """The search reads the workload's filter as we do: no row that passes it is excluded.

    `found` of the `rows` are found under it by their own vector. What a graph loses under a filter is a defect that
    recall tells; `excluded` are those that are not found either where their price is asked for, too, which few rows
    pass: a scan. None of a system that never scans: then as many must be found as not to contradict, by a binomial
    test, that it finds .9 of them.
    """
    detail = f"{found} of {rows} sampled rows that pass the filter found under it by their own vector"
    if excluded is None:
        ok, detail = not _fewer(found, rows, FILTERED_FINDABLE_MIN), f"{detail}, without a scan"
    else:
        ok = excluded == 0
        detail += (
            f"; of the other {rows - found}, a scan of few rows under it misses {excluded}" if found < rows else ""
        )
    return Gate("rows findable, filtered", ok, detail)


def effort(changed: int, queries: int, low: int, high: int, of_reference: int | None, between: bool = False) -> Gate:
    """The search effort is felt: a much smaller one changes answers, unless those of the reference hardly change.

    `of_reference` is how many of its answers change, if it was asked; `between` of queries that lie between rows.
    """
    ok = changed > 0 or of_reference is None or 100 * of_reference < EF_CHANGES * queries
    about = " about points between rows" if between else ""
    detail = f"{changed} of {queries} answers{about} change between ef {low} and {high}"
    return Gate("ef is felt", ok, detail + ("" if of_reference is None else f"; of the reference's {of_reference}"))


def reference_recall(found: float, reference: float, queries: int, ef_search: int) -> Gate:
    """Complete answers are about as good as those of a reference index with the same parameters, not far worse."""
    most = REFERENCE_MISSES * (1 - reference) + REFERENCE_MARGIN
    detail = f"recall {found:.4f} over {queries} complete answers at ef {ef_search}; the reference index has "
    detail += f"{reference:.4f}, at least {max(0.0, 1 - most):.4f} wanted"
    return Gate("reference recall", 1 - found <= most + 1e-9, detail)


def not_cached(ratio: float, faster: float, pairs: int, on_disk: bool) -> Gate:
    """Queries that were asked before are not answered from a cache of answers.

    `ratio` is the median latency of new queries over that of repeated ones between them, `faster` the share of `pairs`
    in which the repeated one took less than half as long. Told, not judged, of data `on_disk`, where it may be read.
    """
    ok = on_disk or ratio < REPEATED_RATIO or faster < REPEATED_SHARE
    detail = f"a new query takes {ratio:.2f} times as long as a repeated one (median), and twice as long in "
    return Gate("no cached answers", ok, f"{detail}{faster:.0%} of {pairs} pairs{' (data on disk)' if on_disk else ''}")


def possible(impossible: int, answers: int, k: int) -> Gate:
    """No answer holds an id that no row has, or more than k rows. Fewer rows than that are a defect of the system."""
    detail = f"{impossible} of {answers} answers hold an id that no row has, or more than {k} rows"
    return Gate("known rows", impossible == 0, detail)


def decodable(undecodable: int, requests: int) -> Gate:
    """Replies are of the protocol: errors that a server reports are, and are counted as failures."""
    ok = undecodable <= CONTRADICTIONS_MAX * requests
    return Gate("decodable", ok, f"{undecodable} of {requests} replies can't be decoded, {_FEW} allowed")


def selectivity(counted: int, matching: int, rows: int) -> Gate:
    """The server's own count of the rows that pass the filter is ours: a narrower or wider filter is another one."""
    detail = f"the server counts {counted} rows that pass the filter, of {rows}; {matching} do by their metadata"
    return Gate("filter selectivity", counted == matching, detail)


def loaded(valid: bool, created: str) -> Gate:
    """The index that is queried came from a valid load (it may have been loaded again since the published one)."""
    return Gate("load", valid, f"the queried index was loaded at {created}, {'valid' if valid else 'but is invalid'}")


def nothing_lost(kill: Mapping[str, Any]) -> Gate:
    """A load whose server was killed (its record's `kill`) lost nothing: of less than all rows, no speed is told."""
    return Gate(
        "nothing lost",
        kill["lost_by_count"] == 0 and kill["lost_by_search"] == 0 and kill["counted"] == kill["acknowledged"],
        f"the server was killed while it was loaded: of {kill['acknowledged']} rows acknowledged it counts "
        f"{kill['counted']}, and of {kill['asked']} searched for {kill['lost_by_search']} are not found",
    )


def older_load(valid: bool, system: str, created: str) -> Gate:
    """What was upgraded in place was a valid load."""
    how = "valid" if valid else "but that load is invalid"
    return Gate("older load", valid, f"opened on a copy of what {system} loaded at {created}, {how}")


def filtered(violating: int, answers: int, selectivity: float) -> Gate:
    """Returned rows satisfy the filter: checked on the metadata, not taken from the request."""
    detail = f"{violating} of {answers} answers hold rows that violate the filter, {_FEW} allowed"
    ok = violating <= CONTRADICTIONS_MAX * answers
    return Gate("filter applied", ok, f"{detail}; it matches {selectivity:.4f} of all rows")


def estimates(median: float, checked: int, nearest: bool = False) -> Gate:
    """Distances that an index estimates from codes are near those of the declared metric.

    Not asked of the `nearest`, which are chosen by their estimates, and smaller than those are wrong where codes are
    coarse: of them it is said, and judged is that they are numbers.
    """
    ok = median <= ESTIMATE_REL_ERROR_MAX or (nearest and median < float("inf"))
    detail = f"estimated from codes: median relative error {median:.2e} over {checked} reported distances"
    whose = " of the nearest: told, and judged of all rows that match" if nearest else ""
    return Gate("distances", ok, detail + whose)


def distances(worst: float, checked: int) -> Gate:
    """Reported distances are those of the declared metric."""
    detail = f"largest relative error {worst:.2e} over {checked} reported distances"
    return Gate("distances", worst <= DISTANCE_REL_ERROR_MAX, detail)


def answered(good: int, samples: int) -> Gate:
    """There is something to report: failures are data (fail/s), but a cell in which everything failed is none."""
    return Gate("answered", good > 0, f"{good} of {samples} requests answered")


def littles_law(clients: int, requests: int, busy_ns: int, span_ns: int) -> Gate:
    """In a closed loop a client always waits for an answer: requests in flight are rate × latency (Little 1961).

    `busy_ns` is the sum of all latencies, `span_ns` the sum over clients from their first request to their last answer.
    """
    in_flight = clients * busy_ns / span_ns if span_ns else float(clients)
    idle_ns = span_ns - busy_ns
    small = 0 <= idle_ns <= 1e3 * IDLE_PER_REQUEST_US * requests
    ok = requests < LITTLE_REQUESTS_MIN or small or abs(idle_ns) <= IDLE_SHARE_MAX * span_ns
    detail = f"rate × latency is {in_flight:.2f} requests in flight, of {clients} clients, over {requests} requests"
    return Gate(LITTLE, ok, detail)


def rows_after_changes(counted: int, least: int, most: int) -> Gate:
    """The server's own count after a stream of changes is what the acknowledgements say.

    `least` and `most` differ by the changes that nobody answered: they may have been made or not.
    """
    expected = str(least) if least == most else f"{least} to {most}, as some changes were not answered,"
    detail = f"{counted} rows, {expected} by the acknowledgements"
    return Gate("rows after the stream", least <= counted <= most, detail)


def written(detail: str, idle: Sequence[str]) -> Gate:
    """There was a stream: some of each kind of change was acknowledged (`idle`: kinds of which none was).

    A system that does not keep the stream's rate is no fault of the measurement: it is said.
    """
    return Gate("stream", not idle, "".join(f"not one {kind} acknowledged; " for kind in idle) + detail)


def primed(errors: int) -> Gate:
    """Warm-up went through: what is measured afterwards is a warm system."""
    return Gate("warm-up", errors == 0, f"{errors} warm-up requests failed")


def alone(waited_s: float, held: bool) -> Gate:
    """The measuring lock of this machine was held throughout, so nobody measured beside it.

    What other programs did meanwhile is the record's `disturbance`.
    """
    detail = f"the machine's measuring lock was held (waited {waited_s:.1f} s for it)"
    lost = "; but its file was removed or replaced meanwhile, so somebody else may have measured"
    return Gate("nothing else measured", held, detail + ("" if held else lost))


def on_platform(platform_id: str) -> Gate:
    """The machine has the facts of the declared platform (a mismatch refuses to measure at all)."""
    return Gate("platform", True, f"this machine agrees with the facts of platform {platform_id!r}")
