"""A query's own conditions (see `datasets.conditions`) in the language of a system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from anncestry.engines.base import Spec

T = TypeVar("T")
_BOUNDS = {"above": ">", "from": ">=", "below": "<", "to": "<="}


@dataclass(frozen=True)
class Comparison:
    """`column` (as every system calls it) `operator` (=, >, >=, < or <=) `value`, a text, a whole number or a float."""

    column: str
    operator: str
    value: str | int | float


def comparisons(term: Spec) -> list[Comparison]:
    """What a term says: all of these hold."""
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

    parts = [say(one) for term in filter["all"] for one in comparisons(term)]
    if filter["any"]:
        ways = [all_of([say(one) for one in comparisons(term)]) for term in filter["any"]]
        parts.append(ways[0] if len(ways) == 1 else some(ways))
    return all_of(parts)


def in_sql(filter: Spec, value: Callable[[str | int | float], str]) -> str:
    """The filter in SQL; `value` writes a literal."""
    return compose(
        filter,
        lambda one: f"{one.column} {one.operator} {value(one.value)}",
        lambda terms: f"({' AND '.join(terms)})",
        lambda terms: f"({' OR '.join(terms)})",
    )


def is_payload(filter: Spec) -> bool:
    """Whether a resolved filter is a query's own conditions."""
    return bool(filter.get("field") == "payload")
