"""What some tests need of the machine: `make test` leaves out those that can't run here, and says so in its last line.

`--what-this-machine-can` leaves them out; without it, they run and fail.

A test states what it needs where it is, by a mark or a fixture. One that makes artifacts states of which systems: by
its parameters, where it is marked `servers`, or by the mark `makes`. What an artifact needs is known from the config,
and a test that makes one that it did not state fails (`refuse_unstated`), on every machine.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from anncestry.engines.opensearch import serve
from anncestry.errors import ServerError
from anncestry.runtimes import artifacts, throttle
from tests import browser, ssh
from tests.servers import PARTS, SYSTEMS, TOPOLOGIES, parts_of

OPTION = "--what-this-machine-can"


@dataclass(frozen=True)
class Need:
    """What is `tested` by the tests that `has` tells, and what is `missing` here for them ("" if nothing is).

    One `of_artifacts` is had by the tests that make such an artifact, told by its entry in the config.
    """

    tested: str
    has: Callable[[pytest.Item], bool]
    missing: Callable[[], str]
    of_artifacts: Callable[[Mapping[str, Any]], bool] | None = None


def _of_artifacts(tested: str, asks: Callable[[Mapping[str, Any]], bool], missing: Callable[[], str]) -> Need:
    return Need(tested, lambda item: any(map(asks, stated(item))), missing, asks)


def stated(item: pytest.Item) -> Iterator[Mapping[str, Any]]:
    """The artifacts that a test says it makes: the systems of `makes`, and all that parameters of a server's test name.

    (Other tests name systems that they never start.)
    """
    names = [name for mark in item.iter_markers("makes") for name in mark.args]
    if item.get_closest_marker("servers") is not None:
        names += _words(list(item.callspec.params.values()) if hasattr(item, "callspec") else [])
    for name in names:
        if name in SYSTEMS:
            entry = SYSTEMS[name]
            yield entry["artifact"] if "artifact" in entry else SYSTEMS[entry["of"]]["artifact"]
        for part in parts_of(TOPOLOGIES[name]) if name in TOPOLOGIES else ():
            yield PARTS[part]["artifact"]


def _words(value: Any) -> list[str]:
    """All texts in parameters, which may be lists of others."""
    if isinstance(value, (list, tuple)):
        return [word for each in value for word in _words(each)]
    return [value] if isinstance(value, str) else []


def refuse_unstated(item: pytest.Item, artifact: Mapping[str, Any]) -> None:
    """Fail a test that makes an artifact which needs something of the machine, and did not state it."""
    for need in NEEDS:
        if need.of_artifacts is not None and need.of_artifacts(artifact) and not need.has(item):
            pytest.fail(
                f"{item.nodeid} needs what not every machine has: {need.tested}. State it: @pytest.mark.makes(SYSTEM)"
            )


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].rpartition("/")[2]


def _fixture(name: str) -> Callable[[pytest.Item], bool]:
    return lambda item: name in getattr(item, "fixturenames", ())


def _programs(*names: str) -> Callable[[], str]:
    return lambda: ", ".join(name for name in names if not shutil.which(name))


def _of_program(tested: str, name: str) -> Need:
    """A need of the tests that are marked `program(name)`."""
    return Need(tested, lambda item: any(name in mark.args for mark in item.iter_markers("program")), _programs(name))


def rights() -> str:
    """What is missing to mount and to make network namespaces."""
    if missing := _programs("unshare")():
        return missing
    done = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False)
    return "the right to mount and to make network namespaces" if done.returncode else ""


def _latex() -> str:
    if missing := _programs("pdflatex", "kpsewhich")():
        return missing
    return "" if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode == 0 else "booktabs.sty"


_OF_ONE_PYTHON = ("usearch", "diskannpy", "lancedb", "duckdb")
"""Packages of compiled modules, pinned for one Python (docs/experiments.md)."""


def is_of_one_python(artifact: Mapping[str, Any]) -> bool:
    """Whether an artifact can be used by the Python alone that its package is pinned for."""
    return artifact["kind"] == "python" and artifact["package"] in _OF_ONE_PYTHON


def _python() -> str:
    return "" if artifacts.PYTHON == artifacts.PINNED_FOR else f"Python {artifacts.PINNED_FOR}"


def _apt() -> str:
    if missing := _programs("apt-get", "dpkg-deb")():
        return missing
    if not artifacts._APT_HELPER.exists():
        return artifacts._APT_HELPER.name
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=False
    )
    return "" if "debian" in listed.stdout.lower() else "an archive of Debian among apt's sources"


def _java() -> str:
    if missing := _programs("mvn")():
        return missing
    try:
        serve.java_home()
    except ServerError:
        return "Java 21 or later with its compiler and jdk.incubator.vector"
    return ""


def _is_opensearch(artifact: Mapping[str, Any]) -> bool:
    return artifact["kind"] == "maven" and any("org.opensearch" in each for each in artifact["coordinates"])


NEEDS = (
    Need(
        "full disks, power cuts, isolation, clients on other machines",
        lambda item: item.get_closest_marker("root") is not None,
        rights,
    ),
    Need("clients on other machines", _fixture("machines"), _programs("ip")),
    Need("clients behind ssh", _fixture("sshd"), lambda: "" if (ssh.UNPACKED / ".unpacked").exists() else "sshd"),
    Need(
        "pages in a browser",
        lambda item: _module(item) == "test_browser.py",
        lambda: ", ".join(path.name for path in (browser.CHROMIUM, browser.DRIVER) if not path.exists()),
    ),
    Need("LaTeX tables", lambda item: _module(item) == "test_latex.py", _latex),
    Need(
        "evenly paced storage paths",
        lambda item: _module(item) == "test_throttle.py" and "even" in item.name,
        lambda: throttle.refused(even=True),
    ),
    Need("clocks that jump", _fixture("jumping"), _programs("g++")),
    Need("packages of npm", _fixture("npm_registry"), _programs("npm")),
    _of_program("keys that openssl made", "openssl"),
    _of_program("completion in zsh", "zsh"),
    _of_program("completion in fish", "fish"),
    _of_artifacts("OpenSearch", _is_opensearch, _java),
    _of_artifacts(
        "Kafka and Pulsar",
        lambda artifact: artifact["kind"] == "maven" and not _is_opensearch(artifact),
        _programs("mvn"),
    ),
    _of_artifacts("MariaDB", lambda artifact: artifact["kind"] == "debian", _apt),
    _of_artifacts(
        "hnswlib, which is compiled",
        lambda artifact: artifact["kind"] == "python" and "source" in artifact,
        _programs("g++"),
    ),
    _of_artifacts("usearch, DiskANN, LanceDB, DuckDB", is_of_one_python, _python),
)


def missing(needs: Sequence[Need] = NEEDS) -> dict[Need, str]:
    """The needs that this machine doesn't meet: what is missing of each."""
    found = {need: need.missing() for need in needs}
    return {need: what for need, what in found.items() if what}


def part(items: Sequence[pytest.Item], lacking: Sequence[Need]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that can run, and those that one of these needs leaves out."""
    out = [item for item in items if any(need.has(item) for need in lacking)]
    return [item for item in items if item not in out], out


def sentence(lacking: dict[Need, str]) -> str:
    """One line: what isn't tested here, and what is missing for it."""
    return "NOT TESTED here: " + "; ".join(f"{need.tested} (missing: {what})" for need, what in lacking.items())
