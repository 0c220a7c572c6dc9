"""Checks of an index against the types and parameters that an engine offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anncestry.cells.indexes import EFFORT, QUANTIZERS
from anncestry.engines.base import Spec, refuse_unknown, whole_number
from anncestry.errors import ConfigError, Unsupported


@dataclass(frozen=True)
class Parameter:
    """A whole number from `low` to `high` that an index is built with."""

    low: int
    high: int
    needed: bool = True


Offered = Mapping[str, Mapping[str, Parameter]]
"""Type → name of a parameter → what it may be."""


def check_index(
    engine: str, index: Spec, offered: Offered, quantizers: Mapping[str, tuple[str, ...]] | None = None
) -> None:
    """Unsupported for a type (or, of a type, a quantizer) that the engine lacks; ConfigError for wrong parameters."""
    kind = str(index.get("type"))
    if kind not in EFFORT:
        raise ConfigError(f"index.type: unknown type {kind!r}; known: {', '.join(EFFORT)}")
    if kind not in offered:
        raise Unsupported(f"index.type: {kind} is unsupported by {engine}; supported: {', '.join(offered)}")
    fitting = (quantizers or {}).get(kind, ())
    quantizer = index.get("quantizer")
    if quantizer is not None and quantizer not in QUANTIZERS:
        raise ConfigError(f"index.quantizer: unknown {quantizer!r}; known: {', '.join(QUANTIZERS)}")
    if quantizer is not None and quantizer not in fitting:
        has = f"supported: {', '.join(fitting)}" if fitting else "it quantizes none of that type"
        raise Unsupported(f"index.quantizer: {quantizer} of {kind} is unsupported by {engine}; {has}")
    known = offered[kind]
    extra: tuple[str, ...] = ("quantizer", "rescore_limit", "training_limit") if fitting else ()
    extra += ("segments",) if "pq" in fitting else ()
    refuse_unknown("index", index, ("type", *known, *extra))
    for name, parameter in known.items():
        if parameter.needed or name in index:
            whole_number(f"index.{name} for {engine}", index.get(name), parameter.low, parameter.high)
    for name in extra[1:]:
        if name in index:
            if quantizer is None:
                raise ConfigError(f"index.{name}: is of a quantizer, and there is none")
            whole_number(f"index.{name} for {engine}", index[name], 0 if name == "rescore_limit" else 1, 1_000_000)
