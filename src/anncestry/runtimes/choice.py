"""Which runtime a topology asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry.runtimes.base import Runner
from anncestry.runtimes.native import NativeRunner


def runner_for(topology: Mapping[str, Any], artifacts: Sequence[Path]) -> Runner:
    """The runtime of `topology`, ready to start the programs of these artifact folders."""
    if topology["runtime"] == "docker":
        from anncestry.runtimes.docker import pod_for

        return pod_for(topology, artifacts)
    return NativeRunner()
