"""What other users of the machine can do to a measurement, and it to them: nothing, where the kernel lets us say so."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anncestry.engines import offers_of
from anncestry.errors import UserError
from anncestry.provenance import platform
from anncestry.runtimes import credentials, namespaces
from anncestry.runtimes.namespaces import NOBODY
from tests.servers import SYSTEMS
from tests.toy import ROOT, Toy

PYTHON = [sys.executable, "-I", "-S", "-c"]
NETWORK = namespaces.refused("--network")
AS_NOBODY = f"--nobody={':'.join(dict.fromkeys([sys.base_prefix, sys.prefix, str(ROOT / 'src')]))}"


def run(options: list[str], command: list[str], **more: str) -> str:
    done = subprocess.run(
        namespaces.wrapped(options, command),
        capture_output=True,
        text=True,
        timeout=600,
        cwd="/",
        env=os.environ | more,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_this_machine_lets_its_users_have_namespaces_or_says_why_not() -> None:
    if NETWORK:
        assert "permitted" in NETWORK or "denied" in NETWORK or "space left" in NETWORK, NETWORK
    assert namespaces.refused("--join=/nowhere/cgroup.procs") == "No such file or directory"


@pytest.mark.root
def test_a_second_interface_leads_nowhere_and_lasts_as_long_as_the_program() -> None:
    script = (
        "import socket\n"
        "print(sorted(name for _, name in socket.if_nameindex()))\n"
        "own = socket.create_server(('10.213.0.1', 0)); socket.create_connection(own.getsockname()).close()\n"
        "other = socket.socket(); other.settimeout(0.5)\n"
        "print(other.connect_ex(('198.51.100.7', 80)) != 0)"
    )
    assert run(["--network", "--interface"], [*PYTHON, script]) == "['anncestry0', 'lo']\nTrue"
    assert "anncestry0" not in {name for _, name in socket.if_nameindex()}


@pytest.mark.root
@pytest.mark.servers
@pytest.mark.parametrize("options", [["--network"], ["--network", "--interface"]])
@pytest.mark.parametrize("name", ["seekdb-1.4.0", "milvus-2.1.0"])
def test_these_start_where_there_is_more_than_a_loopback(name: str, options: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.servers import artifact, running\n"
        "name, folder = sys.argv[1], Path(sys.argv[2])\n"
        "with running(name, artifact(name, folder / 'artifact'), folder / 'data'):\n"
        "    print('it answers')"
    )
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    command = namespaces.wrapped(options, [sys.executable, "-c", script, name, tmp_path])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=os.environ | {"PYTHONPATH": paths}, check=False
    )
    assert ("it answers" in done.stdout) is ("--interface" in options), done.stderr
    assert offers_of(SYSTEMS[name]["engine"]).needs_interface(SYSTEMS[name])
    for other in ("mariadb-11.8.6", "milvus-2.2.16"):
        assert not offers_of(SYSTEMS[other]["engine"]).needs_interface(SYSTEMS[other])


@pytest.mark.root
def test_a_loopback_of_ones_own_works_and_is_no_other_programs() -> None:
    listen = (
        "import socket, subprocess, sys\n"
        "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
        "socket.create_connection(('127.0.0.1', port)).close()\n"
        "print(port, flush=True); sys.stdin.read()"
    )
    connect = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()"
    with subprocess.Popen(
        namespaces.wrapped(["--network"], [*PYTHON, listen]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        outside = subprocess.run([*PYTHON, connect, port], capture_output=True, text=True, timeout=600)
        assert "ConnectionRefusedError" in outside.stderr
        server.communicate("")


@pytest.mark.root
def test_an_ordinary_user_too_may_have_a_network_and_folders_of_his_own(tmp_path: Path) -> None:
    within = namespaces.wrapped(
        ["--network", "--private=/tmp", "--powerless"], [*PYTHON, "import os; print(os.geteuid(), os.listdir('/tmp'))"]
    )
    assert run([AS_NOBODY], within) == f"{NOBODY} []"


@pytest.mark.root
def test_root_that_becomes_nobody_has_no_capability_and_sees_only_what_it_was_shown(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    shown, hidden = closed / "a" / "shown", closed / "hidden"
    for folder in (shown, hidden):
        folder.mkdir(parents=True)
    closed.chmod(0o700)
    shown.chmod(0o755)
    (shown / "file").write_text("here")
    look = (
        "import json, os; status = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines());"
        f"print(json.dumps([open({str(shown / 'file')!r}).read(), os.path.exists({str(hidden)!r}), status['CapEff'], "
        "status['CapBnd'], status['NoNewPrivs'], os.getgroups()]))"
    )
    found = json.loads(run([f"{AS_NOBODY}:{shown}", "--powerless"], [*PYTHON, look]))
    assert found == ["here", False, "0" * 16, "0" * 16, "1", []]


@pytest.fixture(scope="module")
def measured(finished_place: Toy) -> Toy:
    return finished_place


def networks(toy: Toy) -> set[str]:
    paths = [path for stage in ("load", "query") for path in (toy.folder / "results" / stage).rglob("*@*.json")]
    assert len(paths) == 3
    return {json.loads(path.read_text())["server"]["network"] for path in paths}


def test_loads_and_sessions_of_the_workflow_have_a_network_of_their_own_and_say_so(measured: Toy) -> None:
    assert networks(measured) == {f"host ({NETWORK})" if NETWORK else "own"}


def test_whoever_wants_the_machines_network_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(namespaces.NETWORK, "host")
    namespaces.enter(["load", "no key: this program would have been replaced"])
    assert namespaces.network() == "host"


# Passwords


def test_a_password_of_ours_is_random_kept_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        one, again = credentials.made(tmp_path / "a"), credentials.made(tmp_path / "a")
    finally:
        os.umask(before)
    assert one == again != credentials.made(tmp_path / "b")
    assert len(one) == 32 and (tmp_path / "a").stat().st_mode & 0o777 == 0o600


# The measuring lock


@pytest.fixture
def everyones() -> Iterator[Path]:
    """A folder that every user may write to, as /run/lock."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.root
def test_two_users_of_one_machine_do_not_measure_at_once(everyones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 7: the lock lay in each user's cache folder."""
    monkeypatch.delenv("ANNCESTRY_MEASURE_LOCK", raising=False)
    monkeypatch.setattr(platform, "_SHARED", (everyones / "missing", everyones))
    ask = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path; from anncestry.provenance import platform\n"
        f"platform._SHARED = (Path({str(everyones)!r}),); print(platform.measuring())"
    )
    assert run([AS_NOBODY], [sys.executable, "-c", ask], HOME="/nowhere") == "False", "nobody was first, and made it"
    assert platform.lock_path().stat().st_uid == NOBODY
    with platform.alone() as lock:
        assert lock.waited_s < 60
        assert run([AS_NOBODY], [sys.executable, "-c", ask], HOME="/nowhere") == "True"
    assert run([AS_NOBODY], [sys.executable, "-c", ask], HOME="/nowhere") == "False"


def test_a_lock_that_is_a_link_is_not_followed(
    everyones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANNCESTRY_MEASURE_LOCK", raising=False)
    monkeypatch.setattr(platform, "_SHARED", (everyones,))
    platform.lock_path().symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"anncestry-measure\.lock: .*its owner can remove it"):
        platform.measuring()
    assert not (tmp_path / "precious").exists()


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_taken_for_the_lock(
    everyones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANNCESTRY_MEASURE_LOCK", raising=False)
    monkeypatch.setattr(platform, "_SHARED", (everyones,))
    entered, said = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.set() if "waiting for another" in words[0] else None)
    with platform.alone():
        waiting = threading.Thread(target=lambda: platform.alone().__enter__() and entered.set())
        first = platform.lock_path().stat()
        waiting.start()
        assert said.wait(600), "it waits for the lock that is removed now"
        platform.lock_path().unlink()
        with platform.alone():
            assert not os.path.samestat(first, platform.lock_path().stat())
            assert platform.measuring()
    waiting.join(600)
    assert not waiting.is_alive() and entered.is_set()


def test_what_is_not_measured_waits_for_the_end_of_a_measurement(
    everyones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANNCESTRY_MEASURE_LOCK", raising=False)
    monkeypatch.setattr(platform, "_SHARED", (everyones,))
    entered = threading.Event()

    def score() -> None:
        with platform.beside_none():
            entered.set()

    with platform.alone():
        waiting = threading.Thread(target=score)
        waiting.start()
        assert not entered.wait(0.2)
    waiting.join(600)
    assert entered.is_set()
    with platform.beside_none(), platform.beside_none():
        assert not platform.measuring(), "scores run beside each other"


def test_a_machine_without_such_a_folder_has_a_lock_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANNCESTRY_MEASURE_LOCK", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(platform, "_SHARED", (tmp_path / "missing",))
    assert platform.lock_path().parent == tmp_path / "anncestry"
    assert not platform.measuring()
