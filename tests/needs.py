"""What some tests need of the machine: `make test` leaves out those that can't run here, and says so in its last line.

`--what-this-machine-can` leaves them out; without it, they run and fail.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from anncestry.engines.opensearch import serve
from anncestry.errors import ServerError
from tests import browser, ssh

OPTION = "--what-this-machine-can"


@dataclass(frozen=True)
class Need:
    """What is `tested` by the tests that `has` tells, and what is `missing` here for them ("" if nothing is)."""

    tested: str
    has: Callable[[pytest.Item], bool]
    missing: Callable[[], str]


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].rpartition("/")[2]


def _fixture(name: str) -> Callable[[pytest.Item], bool]:
    return lambda item: name in getattr(item, "fixturenames", ())


def _programs(*names: str) -> Callable[[], str]:
    return lambda: ", ".join(name for name in names if not shutil.which(name))


def _rights() -> str:
    if missing := _programs("unshare")():
        return missing
    done = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False)
    return "the right to mount and to make network namespaces" if done.returncode else ""


def _latex() -> str:
    if missing := _programs("pdflatex", "kpsewhich")():
        return missing
    return "" if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode == 0 else "booktabs.sty"


def _java() -> str:
    if missing := _programs("mvn")():
        return missing
    try:
        serve.java_home()
    except ServerError:
        return "Java 21 or later with its compiler and jdk.incubator.vector"
    return ""


NEEDS = (
    Need(
        "full disks, power cuts, isolation, clients on other machines",
        lambda item: item.get_closest_marker("root") is not None,
        _rights,
    ),
    Need("clients on other machines", _fixture("machines"), _programs("ip")),
    Need("clients behind ssh", _fixture("sshd"), lambda: "" if (ssh.UNPACKED / ".unpacked").exists() else "sshd"),
    Need(
        "pages in a browser",
        lambda item: _module(item) == "test_browser.py",
        lambda: ", ".join(path.name for path in (browser.CHROMIUM, browser.DRIVER) if not path.exists()),
    ),
    Need("LaTeX tables", lambda item: _module(item) == "test_latex.py", _latex),
    Need("clocks that jump", _fixture("jumping"), _programs("g++")),
    Need("packages of npm", _fixture("npm_registry"), _programs("npm")),
    Need(
        "OpenSearch",
        lambda item: "opensearch" in item.nodeid and item.get_closest_marker("servers") is not None,
        _java,
    ),
    Need(
        "systems that are built from C++",
        lambda item: "diskann" in item.name and item.get_closest_marker("servers") is not None,
        _programs("g++"),
    ),
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
