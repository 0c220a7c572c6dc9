"""A workload's filter in the language of a system: one on the metadata, or a query's own conditions on the payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from anncestry.engines.base import Spec
from anncestry.engines.offers import filter_bounds

T = TypeVar("T")
Value = str | int | float | tuple[int, ...]
_BOTH = "both"
_BOUNDS = {"above": ">", "from": ">=", "below": "<", "to": "<="}


@dataclass(frozen=True)
class Comparison:
    """`column` `operator` (=, >, >=, <, <= or in) `value`: a text, a whole number, a float, or (in) whole numbers."""

    column: str
    operator: str
    value: Value


def narrowed(filter: Spec | None, other: Spec) -> Spec:
    """A resolved filter that passes what passes both of these."""
    return other if filter is None else {"field": _BOTH, "of": [filter, other]}


def is_payload(filter: Spec) -> bool:
    """Whether a resolved filter is a query's own conditions (see `datasets.payload`)."""
    return bool(filter.get("field") == "payload")


def comparisons(filter: Spec) -> list[Comparison]:
    """A filter on the metadata: all of these hold. Bounds of prices are rounded to float32, as stored."""
    bounds = filter_bounds(filter)
    if bounds.values is not None:
        return [Comparison(bounds.field, "in", bounds.values)]
    sides = ((">=", bounds.low), ("<", bounds.high))
    return [Comparison(bounds.field, operator, bounds.bound(side)) for operator, side in sides if side is not None]


def _terms(term: Spec) -> list[Comparison]:
    column = f"payload_{term['column']}"
    if "equals" in term:
        return [Comparison(column, "=", term["equals"])]
    return [Comparison(column, operator, term[bound]) for bound, operator in _BOUNDS.items() if bound in term]


def compose(
    filter: Spec, say: Callable[[Comparison], T], every: Callable[[list[T]], T], some: Callable[[list[T]], T]
) -> T:
    """The filter, made of what `say` makes of a comparison, and `every` (all hold) and `some` (one does) of several."""

    def all_of(parts: list[T]) -> T:
        return parts[0] if len(parts) == 1 else every(parts)

    if filter.get("field") == _BOTH:
        return all_of([compose(one, say, every, some) for one in filter["of"]])
    if not is_payload(filter):
        return all_of([say(one) for one in comparisons(filter)])
    parts = [say(one) for term in filter["all"] for one in _terms(term)]
    if filter["any"]:
        ways = [all_of([say(one) for one in _terms(term)]) for term in filter["any"]]
        parts.append(ways[0] if len(ways) == 1 else some(ways))
    return all_of(parts)


def in_text(filter: Spec | None, say: Callable[[Comparison], str], both: str, either: str) -> str:
    """The filter in a language with infix operators, "" for none."""
    if filter is None:
        return ""
    if not is_payload(filter) and filter.get("field") != _BOTH:
        return both.join(map(say, comparisons(filter)))
    return compose(filter, say, lambda terms: f"({both.join(terms)})", lambda terms: f"({either.join(terms)})")


def in_sql(filter: Spec | None, literal: Callable[[Comparison], str]) -> str:
    """The filter as a condition of SQL, "" for none; `literal` writes the value of a comparison."""
    return in_text(filter, lambda one: f"{one.column} {one.operator.upper()} {literal(one)}", " AND ", " OR ")
