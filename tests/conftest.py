"""What holds for every test."""

from __future__ import annotations

import os
import shutil

import pytest

from tests import durations, needs, ports, servers, tries
from tests.builders.bench import _loaded, _measured, bench, honest, honest_load  # noqa: F401 - of many tests
from tests.builders.place import finished_place, finished_smoke  # noqa: F401 - so are these
from tests.builders.publisher import published  # noqa: F401
from tests.once import of_session
from tests.remains import Before


@pytest.fixture(scope="session", autouse=True)
def _workers_do_not_wait_for_each_other(tmp_path_factory):
    """Tests side by side are no measurements that disturb each other: each worker's wait for that worker's only."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANNCESTRY_MEASURE_LOCK", str(tmp_path_factory.mktemp("lock") / "measure.lock"))
        yield


_ARTIFACTS = "artifacts"


@pytest.fixture(scope="session", autouse=True)
def _artifacts_are_made_once(tmp_path_factory):
    """For all workers of the session, as unpacking a large one takes a processor for many seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(servers.MADE, str(of_session(tmp_path_factory, _ARTIFACTS)))
        yield


_RUNNING: list[pytest.Item] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Which test runs, its fixtures among it."""
    _RUNNING[:] = [item]
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def _whoever_makes_an_artifact_has_stated_what_it_needs():
    """Else `make test` would fail where that is missing, instead of leaving the test out (tests/needs.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "will_make", lambda *made: [needs.refuse_unstated(_RUNNING[0], each) for each in made])
        yield


@pytest.fixture(scope="session", autouse=True)
def _servers_listen_where_they_are_said_to(tmp_path_factory):
    """Every server that a test starts natively, of whatever engine and topology."""
    from anncestry.engines.base import Server

    with pytest.MonkeyPatch.context() as patch:
        stop = Server.stop

        def look_and_stop(server):
            ours = type(server).__module__.startswith("anncestry.") and server.topology["runtime"] == "native"
            try:
                problems = ports.unlisted(server) if ours and server.group.alive() else []
            finally:
                ending = stop(server)
            assert problems == []
            return ending

        patch.setattr(Server, "stop", look_and_stop)
        yield


@pytest.fixture(scope="module", autouse=True)
def _secrets_are_forgotten():
    """What one file's tests plant as a password may be any word of another's."""
    yield
    from anncestry import redact

    for rules in (redact._strong, redact._beginnings, redact._of_sentences):
        rules.__init__()
    redact._addresses.clear()


_BEFORE, _LEFT = pytest.StashKey[Before](), pytest.StashKey[list[str]]()


def pytest_collection_finish(session):
    """Where real servers or containers are to be run: how it is before them."""
    if any(item.get_closest_marker(name) for item in session.items for name in ("servers", "docker")):
        session.config.stash[_BEFORE] = Before()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """No process, control group, container or network of theirs may be left: if one is, the tests have failed."""
    before, left = session.config.stash.get(_BEFORE, None), session.config.stash.get(_LEFT, [])
    if before is not None:
        left += before.lasting(session.config._tmp_path_factory.getbasetemp())
    if hasattr(session.config, "workeroutput"):  # this is one of several workers: the one who started them says it
        session.config.workeroutput["left"] = left
        return
    shutil.rmtree(session.config._tmp_path_factory.getbasetemp() / _ARTIFACTS, ignore_errors=True)  # gigabytes
    if left:
        session.config.pluginmanager.get_plugin("terminalreporter").write_line(
            "\nThe tests are over, and left on this machine:\n  " + "\n  ".join(left), red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """A worker has ended: what it found is left."""
    found = getattr(node, "workeroutput", {}).get("left", [])
    node.config.stash[_LEFT] = [*node.config.stash.get(_LEFT, []), *found]


def pytest_configure(config):
    config.pluginmanager.register(tries, "tries")


def pytest_addoption(parser):
    parser.addoption(
        needs.OPTION, action="store_true", help="leave out what this machine can't run, and say so at the end"
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    """The longest files, where durations are asked for; the last line says what `make test` could not test here."""
    if config.getoption("durations"):
        terminalreporter.section("longest files")
        every = [report for reports in terminalreporter.stats.values() for report in reports]
        for line in durations.sentences(report for report in every if isinstance(report, pytest.TestReport)):
            terminalreporter.write_line(line)
    if config.getoption(needs.OPTION) and (lacking := needs.missing()):
        terminalreporter.write_line(needs.sentence(lacking), yellow=True)


_OF_ROOT = {"test_disk": "disk", "test_power_cut": "ext4", "test_hosts": "machines", "test_ssh": "sshd"}


_LONGEST = (
    "test_dvc", "test_reruns", "test_damaged", "test_engines", "test_remote", "test_report", "test_verify",
    "test_faults", "test_mysql", "test_gates", "test_guard", "test_evidence", "test_upgrade", "test_stream",
    "test_disk", "test_smoke", "test_bench", "test_pairs", "test_freezing", "test_engine_check", "test_libraries",
    "test_zero_vectors", "test_browser", "test_attacks", "test_compare", "test_killed", "test_killed_load",
    "test_wheel", "test_opensearch", "test_fault", "test_clusters", "test_polardb", "test_guard_files",
    "test_indexes", "test_security", "test_noise", "test_arms", "test_docker",
)  # fmt: skip


def _place(item):
    name = item.module.__name__.rpartition(".")[2]
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Start the longest files first, so that no worker ends alone. Mark tests that mount a disk or make namespaces.

    Where it is asked for, leave out what this machine can't run.
    """
    items.sort(key=_place)
    for item in items:
        module = item.module.__name__.rpartition(".")[2]
        if _OF_ROOT.get(module) in item.fixturenames:
            item.add_marker(pytest.mark.root)
    if config.getoption(needs.OPTION):
        items[:], out = needs.part(items, list(needs.missing()))
        config.hook.pytest_deselected(items=out)
