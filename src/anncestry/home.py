"""Where the files lie that belong to this package, but are no modules: in its checkout, or inside the wheel.

A checkout keeps workflow/, config/, envs/ and profiles/ at its top. A wheel carries copies of them in its folder
`home`, with the driver's programs in `home/drivers` and facts about the build in `home/build.json`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
MODULES = PACKAGE.parent
"""The folder that a Python which is to import this package needs in its path."""

CARRIED = PACKAGE / "home"
"""What a wheel carries. A checkout does not have this folder."""

_TOP = PACKAGE.parents[1]
CHECKOUT = _TOP if (_TOP / "Snakefile").is_file() and (_TOP / "workflow").is_dir() else None
"""The checkout that this package is part of; None if it was installed from a wheel."""

HOME = CHECKOUT or CARRIED
WORKFLOW = HOME / "workflow" / "Snakefile"
"""The Snakefile that a project's own Snakefile includes."""
SCHEMAS = HOME / "workflow" / "schemas"
ENVIRONMENTS = HOME / "envs"
"""Requirements of environments with other client libraries."""
PROFILES = HOME / "profiles"
CONFIG = HOME / "config"
EPOCHS = CONFIG / "epochs.yaml"
PUBLISHED = CONFIG / "published"
CASE_STUDIES = (CHECKOUT or MODULES) / "casestudies"
LOCK = HOME / "requirements.lock"
"""The locked environment: what `make env` installs."""
DRIVERS = CARRIED / "drivers"
"""The driver and its null server, built ahead."""

RUN = "snakemake --cores 8 all --logger anncestry"
"""What runs the default experiment, in a checkout or a project, with one calm view instead of Snakemake's log."""

_BUILD = CARRIED / "build.json"
PARTS = ("workflow", "config", "envs", "profiles", "Snakefile", "requirements.lock")
"""What of a checkout a wheel carries."""


@cache
def build_facts() -> dict[str, Any] | None:
    """`commit`, `dirty` and `diff_sha256` of the checkout that the wheel was built from; None in a checkout."""
    if CHECKOUT is not None or not _BUILD.is_file():
        return None
    facts: dict[str, Any] = json.loads(_BUILD.read_text())
    return facts
