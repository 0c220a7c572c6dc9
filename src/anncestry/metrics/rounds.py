"""How many rounds a cell needs: more while its interval is wide, by a rule that is declared beforehand.

The interval is that of the geometric mean of QPS over runs: t with n - 1 degrees of freedom on the logs, as differences
between runs are ratios. Stopping where an interval is narrow makes it a little too narrow (docs/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import stdev
from typing import Any

from anncestry.metrics import special

NARROW, MOST, WIDE = "narrow", "most rounds", "wide"


def half_width_percent(rates: Sequence[float | None]) -> float | None:
    """How far the 95 % interval of the mean of these rates (runs,) reaches above it; None if a run has no rate."""
    logs = [math.log(rate) for rate in rates if rate]
    if len(logs) < max(2, len(rates)):
        return None
    reach = float(special.stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
    return 100 * math.expm1(reach) if reach < 10 else None


Width = Callable[[Sequence[Any]], float | None]
"""How far an interval reaches above its mean, %, of what each run found."""


def decide(rates: Sequence[Any], rule: Mapping[str, Any], width_of: Width = half_width_percent) -> dict[str, Any]:
    """What `rule` (first, most, interval_percent) says after runs of these rates, or ratios of pairs (runs,).

    `half_width_percent` after the first runs and after each further one, by `width_of`, and the `state`: narrow, most
    rounds, or wide.
    """
    reached = [width_of(rates[:count]) for count in range(rule["first"], len(rates) + 1)]
    narrow = reached[-1] is not None and reached[-1] <= rule["interval_percent"]
    state = NARROW if narrow else MOST if len(rates) >= rule["most"] else WIDE
    return {"half_width_percent": reached, "state": state}


def problem(
    rates: Sequence[Any],
    rule: Mapping[str, Any],
    stated: Mapping[str, Any],
    width_of: Width = half_width_percent,
) -> str:
    """What is wrong with a record's decision on its rounds; empty if nothing is."""
    again = decide(rates, rule, width_of)
    for count, width in enumerate(again["half_width_percent"][:-1], start=rule["first"]):
        if width is not None and width <= rule["interval_percent"]:
            return f"it was narrow (±{width:.3g} %) after {count} rounds, but was measured in {len(rates)}"
    if len(rates) > rule["most"]:
        return f"{len(rates)} rounds, where at most {rule['most']} are declared"
    if again["state"] == WIDE and not stated.get("stopped"):
        return "its interval is wider than declared, and nothing says why no further round was measured"
    return ""
