"""Client libraries of other versions than the locked ones: environments of their own, pinned by `envs/NAME.txt`.

Such a file names every package with its version and hashes. The environment is made from it when it is first needed,
in the user's cache, under the digest of the file; nothing but the client processes that ask for it sees its packages.
"""

from __future__ import annotations

import hashlib
import platform
import venv
from functools import partial
from pathlib import Path

from anncestry import user_cache
from anncestry.errors import ConfigError, DataError
from anncestry.runtimes import kept, python_packages
from anncestry.runtimes.go import last_line

FOLDER = Path(__file__).resolve().parents[3] / "envs"
"""Where the pinned requirements lie."""


def identity(name: str) -> dict[str, str]:
    """Its `name`, and the `sha256` of its requirements; ConfigError if there are none of that name."""
    return {"name": name, "sha256": hashlib.sha256(_requirements(name)).hexdigest()}


def interpreter(name: str) -> Path:
    """The Python of the environment, which is made if it is not there (some seconds, once).

    Everything comes as wheels that match the hashes, by the user's own pip configuration. DataError if it can't be had.
    """
    digest = identity(name)["sha256"]
    entry = user_cache.folder("built") / f"{name}-{digest[:12]}-python{platform.python_version()}"
    kept.built(entry, partial(_make, name))
    return entry / kept.FILES / "bin" / "python"


def _requirements(name: str) -> bytes:
    try:
        return (FOLDER / f"{name}.txt").read_bytes()
    except OSError as error:
        raise ConfigError(f"envs/{name}.txt: {error.strerror}: it pins the client's packages") from None


def _make(name: str, folder: Path) -> None:
    venv.create(folder)  # without pip: ours installs
    asked = ["install", "--only-binary", ":all:", "--requirement", str(FOLDER / f"{name}.txt")]
    done = python_packages.pip(["--python", str(folder / "bin" / "python"), *asked], folder)
    if done.returncode != 0:
        wrong = "DO NOT MATCH THE HASHES" in done.stderr
        reason = "a package does not match its hash" if wrong else last_line(done.stderr)
        raise DataError(f"envs/{name}.txt: can't make its environment: {reason}")
