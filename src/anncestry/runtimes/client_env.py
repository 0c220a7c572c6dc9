"""Client libraries of other versions than the locked ones: environments of their own, pinned by `envs/NAME.txt`.

Such a file names every package with its version and hashes. The environment is made from it when it is first needed,
in the user's cache, under the digest of the file; nothing but the client processes that ask for it sees its packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import subprocess
import sys
import venv
from pathlib import Path

from anncestry import user_cache
from anncestry.errors import ConfigError, DataError
from anncestry.runtimes.go import last_line

FOLDER = Path(__file__).resolve().parents[3] / "envs"
"""Where the pinned requirements lie."""
_NETWORK_TIMEOUT_S = 1800
_COMPLETE = "complete"


def identity(name: str) -> dict[str, str]:
    """Its `name`, and the `sha256` of its requirements; ConfigError if there are none of that name."""
    return {"name": name, "sha256": hashlib.sha256(_requirements(name)).hexdigest()}


def interpreter(name: str) -> Path:
    """The Python of the environment, which is made if it is not there (some seconds, once).

    Everything comes as wheels that match the hashes, by the user's own pip configuration. DataError if it can't be had.
    """
    digest = identity(name)["sha256"]
    cache = user_cache.folder("envs")
    folder = cache / f"{name}-{digest[:12]}-python{platform.python_version()}"
    python = folder / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _COMPLETE).exists():
            _make(name, folder, python)
    return python


def _requirements(name: str) -> bytes:
    try:
        return (FOLDER / f"{name}.txt").read_bytes()
    except OSError as error:
        raise ConfigError(f"envs/{name}.txt: {error.strerror}: it pins the client's packages") from None


def _make(name: str, folder: Path, python: Path) -> None:
    venv.create(folder, clear=True)  # without pip: ours installs
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(FOLDER / f"{name}.txt")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            *options,
            "--no-input",
            "--quiet",
            "--disable-pip-version-check",
        ],
        capture_output=True,
        text=True,
        timeout=_NETWORK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        wrong = "DO NOT MATCH THE HASHES" in done.stderr
        reason = "a package does not match its hash" if wrong else last_line(done.stderr)
        raise DataError(f"envs/{name}.txt: can't make its environment: {reason}")
    (folder / _COMPLETE).touch()
