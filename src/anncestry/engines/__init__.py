"""The databases: a folder each, found by name, with its `OFFERS` and its `ENGINE`."""

from __future__ import annotations

from anncestry.cells import features
from anncestry.engines.base import Engine, EngineOf
from anncestry.engines.offers import Offers
from anncestry.errors import ConfigError


def known() -> list[str]:
    """Names of the engines of this package."""
    return features.plugins(__name__)


def get(name: str) -> Engine:
    """The engine of that name (see `features.plugin`), to run it: imports client libraries."""
    engine = features.plugin(__name__, name, "ENGINE", "engine")
    if not isinstance(engine, EngineOf):
        raise ConfigError(f"engine: {name} has no ENGINE that is an Engine (docs/adding-an-engine.md)")
    return engine


def offers_of(name: str) -> Offers:
    """What the engine of that name (see `features.plugin`) offers, to check a config: imports no client library."""
    offers = features.plugin(__name__, name, "OFFERS", "engine")
    if not isinstance(offers, Offers):
        raise ConfigError(f"engine: {name} has no OFFERS that are Offers (docs/adding-an-engine.md)")
    return offers
