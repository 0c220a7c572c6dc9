"""A workload's filter in the language of a system: one on the metadata, or a query's own conditions on the payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


Span = Callable[[Comparison, Comparison], T]
"""What says a range of both its bounds, the lower one first."""


def said(ones: Sequence[Comparison], say: Callable[[Comparison], T], span: Span[T] | None) -> list[T]:
    """Each comparison by itself; the two bounds of a range as one, where the language has a `span`.

    To a planner, two halves are not one range: it takes each for about half of the rows. An empty range stays two.
    """
    if span is not None and len(ones) == 2 and ones[0].column == ones[1].column:
        low, high = sorted(ones, key=lambda one: one.operator, reverse=True)
        if low.operator in (">", ">=") and high.operator in ("<", "<=") and low.value < high.value:  # type: ignore[operator]
            return [span(low, high)]
    return [say(one) for one in ones]


def compose(
    filter: Spec,
    say: Callable[[Comparison], T],
    every: Callable[[list[T]], T],
    some: Callable[[list[T]], T],
    span: Span[T] | None = None,
) -> T:
    """The filter, made of what `say` makes of a comparison (and `span` of a range), and of several by `every` (all
    hold) and `some` (one does)."""

    def all_of(parts: list[T]) -> T:
        return parts[0] if len(parts) == 1 else every(parts)

    if filter.get("field") == _BOTH:
        return all_of([compose(one, say, every, some, span) for one in filter["of"]])
    if not is_payload(filter):
        return all_of(said(comparisons(filter), say, span))
    parts = [part for term in filter["all"] for part in said(_terms(term), say, span)]
    if filter["any"]:
        ways = [all_of(said(_terms(term), say, span)) for term in filter["any"]]
        parts.append(ways[0] if len(ways) == 1 else some(ways))
    return all_of(parts)


def in_text(
    filter: Spec | None, say: Callable[[Comparison], str], both: str, either: str, span: Span[str] | None = None
) -> str:
    """The filter in a language with infix operators, "" for none."""
    if filter is None:
        return ""
    if not is_payload(filter) and filter.get("field") != _BOTH:
        return both.join(said(comparisons(filter), say, span))
    return compose(filter, say, lambda terms: f"({both.join(terms)})", lambda terms: f"({either.join(terms)})", span)


def in_sql(filter: Spec | None, literal: Callable[[Comparison], str]) -> str:
    """The filter as a condition of SQL, "" for none; `literal` writes the value of a comparison."""
    return in_text(filter, lambda one: f"{one.column} {one.operator.upper()} {literal(one)}", " AND ", " OR ")
