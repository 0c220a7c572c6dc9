"""A container engine for the time of a command, where Docker is installed and none runs: fenced off from the host.

It makes no firewall rule, no default bridge and no route, keeps its images in this user's cache, and is stopped, with
everything that it started, when the command ends.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker
import psutil

from anncestry.errors import ServerError, UserError
from anncestry.provenance.running import owner
from anncestry.runtimes.base import log_tail
from anncestry.runtimes.docker import _ENGINE_ERRORS, where
from anncestry.runtimes.native import MARK

PACKAGES = ("docker.io", "iptables")
"""Debian's; the second only because dockerd looks for the program, even when told not to use it."""
_POOLS = ("10.213.64.0/18", "10.214.64.0/18", "172.29.0.0/18", "192.168.192.0/18")
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0


def answers() -> bool:
    """Whether an engine answers where DOCKER_HOST, or else the default, points."""
    try:
        with closing(docker.from_env(timeout=5)) as client:
            return bool(client.ping())
    except _ENGINE_ERRORS:
        return False


def install() -> None:
    """Have Debian's package installed if there is no dockerd; UserError where that can't be."""
    if shutil.which("dockerd"):
        return
    command = ["apt-get", "install", "-yq", "--no-install-recommends", *PACKAGES]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UserError(
            f"no container engine answers at {where()}, none is installed, and only root can install one: "
            "install and start Docker, then try again"
        )
    print(f"no container engine here: {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-q"], command):
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 or shutil.which("dockerd") is None:
        raise UserError(f"{' '.join(command)} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def _free_pool() -> str:
    """An address range that no interface of this machine lies in."""
    taken = [
        ipaddress.ip_interface(f"{address.address}/{address.netmask}").network
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family.name == "AF_INET" and address.netmask
    ]
    for pool in _POOLS:
        if not any(ipaddress.ip_network(pool).overlaps(network) for network in taken):
            return pool
    raise UserError(
        f"every address range for containers overlaps with an interface of this machine: {', '.join(_POOLS)}"
    )


@contextmanager
def engine(cache_dir: Path) -> Iterator[str]:
    """Run an engine for the length of the block; yields its address (for DOCKER_HOST).

    One at a time a user: a second one waits. UserError where it can't be started, with the reason.
    """
    program = shutil.which("dockerd")
    if program is None:
        raise UserError("dockerd is not installed (Debian: the packages " + " and ".join(PACKAGES) + ")")
    if os.geteuid() != 0:
        raise UserError("only root can start a container engine: start Docker, or run this as root")
    store = cache_dir / "engine"
    store.mkdir(parents=True, exist_ok=True)
    with open(store / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another command of this user that uses a container engine", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        _refuse_another(store)
        # Short paths: the name of a socket has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="anncestry-engine-", ignore_cleanup_errors=True) as run:
            folder = Path(run)
            address = f"unix://{folder / 'docker.sock'}"
            command = [
                program, "--host", address, "--data-root", str(store / "root"), "--exec-root", str(folder / "run"),
                "--pidfile", str(folder / "dockerd.pid"), "--bridge", "none", "--iptables=false", "--ip6tables=false",
                "--ip-masq=false", "--ip-forward=false",
                "--default-address-pool", f"base={_free_pool()},size=24", "--log-level", "warn",
            ]  # fmt: skip
            with open(folder / "dockerd.log", "ab") as log:
                # What it is found by if this command is killed (`leftovers`): it, and what it starts.
                marked = {**os.environ, MARK: owner(os.getpid())}
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=marked, start_new_session=True
                )
            try:
                _await(process, address, folder / "dockerd.log")
                yield address
            finally:
                _stop(process, address, folder / "dockerd.pid", store)


def _refuse_another(store: Path) -> None:
    """ServerError if an engine on this store still runs: that of a command that was killed, as nobody has the lock."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(store / "root") in process.cmdline():
                raise ServerError(
                    f"the container engine of a killed command still runs (pid {process.pid}): "
                    "`anncestry leftovers --clean` ends it"
                )


def _await(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        with suppress(*_ENGINE_ERRORS), closing(docker.DockerClient(base_url=address, timeout=5)) as client:
            client.ping()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerError("the container engine did not start", log_tail(log))
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes], address: str, pid_file: Path, store: Path) -> None:
    """Remove what runs (nobody else can have started anything: the engine is this command's), then end the engine."""
    with suppress(*_ENGINE_ERRORS):
        client = docker.DockerClient(base_url=address, timeout=30)
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)
        for network in client.networks.list():
            if network.name not in ("none", "host", "bridge"):
                network.remove()
        client.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _end_orphans(pid_file.parent, store)
    pid_file.unlink(missing_ok=True)


def _end_orphans(folder: Path, store: Path) -> None:
    """End what an engine that was killed left running: the parts that it starts name its folder, and what is in its
    containers are their children. Then give back what it has mounted there and in its store."""

    def parts() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(folder) in word for word in process.cmdline()) and process.pid != os.getpid():
                    found += [process, *process.children(recursive=True)]
        return found

    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while (left := parts()) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([place for place in mounts if place.startswith((f"{folder}/", f"{store}/"))]):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


def run(command: Sequence[str], cache_dir: Path, may_install: bool) -> int:
    """Run a command beside an engine: the one that answers, else one of its own. Returns the command's exit status."""
    if answers():
        return _run(command, dict(os.environ))
    if may_install:
        install()
    with engine(cache_dir) as address:
        return _run(command, {**os.environ, "DOCKER_HOST": address})


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The command's exit status. It is given time to tidy up, however this process is asked to end."""
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}") from None
    try:
        return child.wait()
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):  # the terminal has told the child, too
            child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
