"""Package registries by their own clients, pip and npm, as the user has configured them: no host is named here.

What they say when they fail goes into messages without addresses: those may hold a password.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from anncestry.errors import DataError

_NETWORK_TIMEOUT_S = 1800
_NO_PIP = "this Python has no pip: install it (python -m ensurepip)"
_NO_NPM = "npm is not on the PATH: install it (apt-get install npm)"
_ADDRESS = re.compile(r"\w+://[^\s'\"]+|(?<=host=)'[^']*'|\b[\w.-]+\.[\w-]+:\d+\b")
"""URLs, and hosts as pip's libraries and npm name them."""
_FOUND = re.compile(r"==\S+ from (\S+) .*?\bGot\s+([0-9a-f]{64})\b", re.DOTALL)
"""Where a file is from and its sha256, as pip tells them where it expected another."""
_UNREACHED = ("ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT")
_NPM_CODES = {
    "E401": "its registry wants a login",
    "E403": "its registry refuses it",
    "E404": "its registry has no such version",
    "ETARGET": "its registry has no such version",
    "EINTEGRITY": "it is not what its registry says",
    **dict.fromkeys(_UNREACHED, "its registry can't be reached"),
}


def run(
    command: list[str], folder: Path, environment: dict[str, str], failure: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command that may use the network; one that takes too long has failed.

    With `failure`, DataError of it and the reason if the command fails.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_NETWORK_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 1, "", f"not done within {_NETWORK_TIMEOUT_S} s")
    if failure and done.returncode != 0:
        raise DataError(f"{failure}: {last_line(done.stderr)}")
    return done


def last_line(text: str) -> str:
    """What a failed command said last: its reason, as a rule."""
    return (text.strip().splitlines() or ["no reason given"])[-1]


def without_addresses(text: str) -> str:
    """The text of a client without addresses: a registry's is the machine's own business, and may hold a password."""
    return _ADDRESS.sub("(an address)", text)


def pip(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run pip on a file of requirements, by the user's own configuration: nothing without a hash, nothing beside it.

    A mirror that keeps what it was asked for may list the versions of yesterday once more: then it is asked again.
    """
    held = ["--no-deps", "--require-hashes", "--no-input", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *arguments, *held]
    done = run(command, folder, dict(environment))
    if done.returncode != 0 and "No matching distribution found" in done.stderr:
        done = run(command, folder, dict(environment))
    return done


def pip_reason(done: subprocess.CompletedProcess[str], mismatch: str) -> str:
    """Why pip failed; `mismatch` where it found another hash than the pinned one."""
    output = done.stdout + done.stderr
    if "DO NOT MATCH THE HASHES" in output:
        return mismatch
    if "No module named pip" in output:
        return _NO_PIP
    reason = without_addresses(last_line(output))
    # pip says so first, and then that there is no such package.
    return f"{reason} (its index can't be reached)" if "Retrying (Retry(" in output else reason


def wheel(
    package: str,
    version: str,
    sha256: str,
    options: Sequence[str],
    folder: Path,
    failure: str,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The wheel that pip, with `options`, leaves in the folder wheel/ of `folder`, which is new.

    DataError of `failure` and the reason where it can't, or where it finds the package with another digest.
    """
    done = _asked_of_pip(package, version, sha256, options, folder, environment)
    if done.returncode != 0:
        raise DataError(f"{failure}: {pip_reason(done, f'its sha256 is not the pinned {sha256[:12]}…')}")
    (found,) = (folder / "wheel").iterdir()
    return found


def release(package: str, version: str, options: Sequence[str], folder: Path, failure: str) -> tuple[str, str]:
    """Name and sha256 of the file that pip, with `options`, has of a package's version; `folder` is new.

    pip is asked for a digest that no file has, and tells the one that it found. So nothing of the file is unpacked or
    run, as a source distribution would be. DataError of `failure` and the reason where it can't be had.
    """
    done = _asked_of_pip(package, version, "0" * 64, options, folder)
    found = _FOUND.search(done.stdout + done.stderr)
    if found is None:
        raise DataError(f"{failure}: {pip_reason(done, 'pip does not tell its sha256')}")
    return unquote(re.split("[?#]", found[1])[0].rpartition("/")[2]), found[2]


def _asked_of_pip(
    package: str,
    version: str,
    sha256: str,
    options: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    return pip([*options, "--requirement", "requirements.txt"], folder, environment)


def npm_pack(package: str, version: str, folder: Path, failure: str) -> Path:
    """The archive of a package as npm's registry has it, in `folder`, which is new; no code of the package is run.

    npm itself compares it with the digest that the registry states. DataError of `failure` and the reason where it
    can't be had.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"{failure}: {_NO_NPM}")
    folder.mkdir(parents=True)
    command = [npm, "pack", f"{package}@{version}", "--ignore-scripts", "--json", "--loglevel=error"]
    done = run([*command, "--no-update-notifier", f"--pack-destination={folder}"], folder, dict(os.environ))
    if done.returncode != 0:
        raise DataError(f"{failure}: {_npm_reason(done)}")
    found = list(folder.glob("*.tgz"))
    if len(found) != 1:
        raise DataError(f"{failure}: npm left {len(found)} archives instead of one")
    return found[0]


def _npm_reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why npm failed: what its code means, else the code and its summary, on one line."""
    try:
        error = json.loads(done.stdout)["error"]
        known = _NPM_CODES.get(error["code"])
        said = f"{known} ({error['code']})" if known else f"{error['code']}: {error['summary']}"
    except (ValueError, TypeError, KeyError):  # it says so in JSON unless it fails at once
        said = last_line(done.stderr)
    return without_addresses(" ".join(said.split()))
