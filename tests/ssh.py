"""A real sshd of a test's own, on loopback, which lets in whoever has the test's key; it ends with the block."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UNPACKED = Path(sys.prefix) / "ssh"
"""Where `make sshd` has put Debian's packages."""
HOST = "loadgen-1"
_WAIT_S = 300

# The sshd of a root needs a user of that name and /run/sshd: both are there in a mount namespace of its own only.
_START = """set -e
mount --bind "$0/passwd" /etc/passwd
mount -t tmpfs -o mode=755 anncestry /run
mkdir /run/sshd
exec "$@"
"""
_SERVER = """ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PidFile none
"""
_CLIENT = """Host {host}
HostName 127.0.0.1
Port {port}
User {user}
IdentityFile {folder}/client
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
"""


@dataclass(frozen=True)
class Sshd:
    """One that runs. `command` runs a program behind it, `stranger` would with a key that it doesn't know."""

    folder: Path
    command: str
    stranger: str

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "sshd.log").read_text()


def _environment() -> Mapping[str, str]:
    libraries = [str(UNPACKED / part / "lib" / "x86_64-linux-gnu") for part in ("usr", ".")]
    libraries += [str(path.parent) for path in UNPACKED.rglob("libwrap.so.0")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _key(path: Path) -> str:
    program = UNPACKED / "usr" / "bin" / "ssh-keygen"
    subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True, env=_environment())
    return path.with_suffix(".pub").read_text()


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    """Start one; its keys, configuration and log are in `folder`."""
    program = UNPACKED / "usr" / "sbin" / "sshd"
    assert program.exists(), "NOT TESTED: load generators behind ssh. There is no sshd here: make sshd"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    host_key = _key(folder / "host")
    _key(folder / "client")
    _key(folder / "stranger")
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    users = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("sshd:")]
    (folder / "passwd").write_text("\n".join([*users, "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin", ""]))
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder))
    client = _CLIENT.format(host=HOST, port=port, folder=folder, user="root")
    (folder / "ssh_config").write_text(client)
    (folder / "stranger_config").write_text(client.replace(f"{folder}/client", f"{folder}/stranger"))
    command = ["unshare", "--mount", "/bin/sh", "-c", _START, folder, program, "-D", "-e", "-f", folder / "sshd_config"]
    with open(folder / "sshd.log", "w") as log:
        daemon = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    ssh = UNPACKED / "usr" / "bin" / "ssh"
    running = Sshd(folder, *(f"{ssh} -F {folder}/{name}_config {HOST}" for name in ("ssh", "stranger")))
    try:
        deadline = time.monotonic() + _WAIT_S
        while "Server listening" not in running.log:
            assert daemon.poll() is None and time.monotonic() < deadline, running.log
            time.sleep(0.05)
        yield running
    finally:
        daemon.terminate()
        daemon.wait()
