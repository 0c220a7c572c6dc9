"""Toy configs: expanded, or refused by a sentence."""

from __future__ import annotations

import pytest

from anncestry import workflow
from anncestry.cells.matrix import Matrix
from anncestry.errors import ConfigError
from tests.toy import Toy


def expand(toy: Toy, experiment: str = "default") -> Matrix:
    toy.save()
    return workflow.expand(workflow.Choice(toy.folder / "config", experiment))


def refused(toy: Toy, *words: str) -> None:
    with pytest.raises(ConfigError) as error:
        expand(toy)
    for word in words:
        assert word in str(error.value), str(error.value)
    assert "\n" not in str(error.value)
