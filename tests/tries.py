"""Second tries, a plugin of pytest: a test that failed is run once more (`--reruns 1`), and the end says which.

Real servers, graphs that threads build, and a machine that others use differ from run to run. A test that fails by such
things once in 5,000 runs is a good test, and 4,600 of those fail together in three runs of five. What fails twice has
failed; and where more than a few need a second try, something else is wrong.
"""

from __future__ import annotations

import pytest

AT_MOST = 3


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The run has failed if many needed a second try."""
    if len(_second(session.config)) > AT_MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Each test that needed a second try, with what it said first."""
    if not (second := _second(config)):
        return
    terminalreporter.section("needed a second try")
    for name, said in sorted(second.items()):
        terminalreporter.write_line(f"{name}: {said}", yellow=True)
    if len(second) > AT_MOST:
        terminalreporter.write_line(f"More than {AT_MOST} tests needed one: this run has failed.", red=True)


def _second(config: pytest.Config) -> dict[str, str]:
    """By test, the first line of the error of its first try."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("rerun", []) if reporter else []
    return {report.nodeid: _reason(report.longreprtext) for report in reversed(reports)}


def _reason(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("E ")] or said.splitlines()[-1:]
    return " ".join("".join(lines[:1]).split())[:200]
