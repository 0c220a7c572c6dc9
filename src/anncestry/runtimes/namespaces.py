"""Private ports, folders and powers for the servers of a measurement: start a program held and set apart as asked.

Some servers listen on all interfaces whatever their settings, and most have no password. So a measurement of native
servers runs in its own network namespace, with its clients; its loopback is the only interface (but for a server that
does not start without another one: it gets one that leads nowhere). This needs root, or a
kernel that lets users create namespaces. Otherwise the servers use the machine's network, as SECURITY.md lists, and the
measurement says so.

Run as a file, this becomes another program: `python -I -S namespaces.py [OPTION …] [NAME=VALUE …] -- PROGRAM
[ARGUMENT …]`. Options, whatever their order done in this one:

  --join=FILE      enter the control group of that cgroup.procs
  --affinity=CPU,… run on these
  --data=BYTES     RLIMIT_DATA
  --network        a network namespace of its own, with a loopback
  --interface      in it also an interface that leads nowhere
  --private=FOLDER an empty folder of its own there (a mount namespace); others never see what is written to it
  --nobody=PATH:…  root becomes nobody, who sees of folders that he may not enter these paths alone
  --powerless      no capability, and none by any program that it starts
  --tie=PID        end with the process PID, which must be the parent: the kernel kills this one then

A program of its own instead of `preexec_fn`, which runs Python between fork and exec and may deadlock where threads
(gRPC's) hold locks. The given variables reach the program, not this interpreter: a server's LD_LIBRARY_PATH may hold
libraries that Python must not load.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

NETWORK = "ANNCESTRY_NETWORK"
"""In the environment of a measurement: "host" and why, or what tells that the network is its own. A user who sets it
to "host" gets that."""
_ELSEWHERE = "own, not "
"""Before the number of the network that a measurement left for its own."""
NOBODY = 65_534
_PROBE_S = 60
_NEWNS, _NEWUSER, _NEWNET = 0x20000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_SET_PDEATHSIG, _CAPBSET_DROP, _SET_NO_NEW_PRIVS, _CAP_AMBIENT, _CLEAR_ALL = 1, 24, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8913, 0x8914, 0x8916, 1
_TUN, _TUNSETIFF, _IFF_TUN_NO_PI = "/dev/net/tun", 0x400454CA, 0x1001
_NOWHERE = b"anncestry0", "10.213.0.1"
"""Name and address of the second interface: a private one (RFC 1918), as old versions of Weaviate ask for."""

_libc = ctypes.CDLL(None, use_errno=True)


def wrapped(options: Sequence[str], command: Sequence[str | Path]) -> list[str]:
    """The command that becomes `command` after what this file does for `options`."""
    return [sys.executable, "-I", "-S", __file__, *options, "--", *map(str, command)]


@cache
def refused(*options: str, trial: tuple[str | Path, ...] = (sys.executable, "-I", "-S", "-c", "pass")) -> str:
    """Why this user can't have a program set apart by these options here, as a `trial` showed; "" if he can."""
    import subprocess  # not by the program that this file is, whose start is a server's

    command = wrapped(options, trial)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, cwd="/", check=False)
    return "" if done.returncode == 0 else done.stderr.strip().rpartition(": ")[2] or "no reason is given"


def network() -> str:
    """Whose network this process' servers are on: "own" (of this measurement), or "host", with why it isn't."""
    said = os.environ.get(NETWORK) or "host"
    if not said.startswith(_ELSEWHERE):
        return said
    return "own" if said != f"{_ELSEWHERE}{_number()}" else "host"


def _number() -> int:
    return Path("/proc/self/ns/net").stat().st_ino


def enter(arguments: Sequence[str], interface: bool = False) -> None:
    """Start this program (`anncestry ARGUMENTS`) again in a network of its own, unless it is there or can't be.

    `interface`: with one beside the loopback.
    """
    if said := os.environ.get(NETWORK):
        if said.startswith((_ELSEWHERE, "host")):
            return
        from anncestry.errors import UserError  # not by the program that this file is

        raise UserError(f"{NETWORK} is {said!r}: only host can be chosen, servers have a network of their own else")
    options = ["--network", *(["--interface"] if interface else [])]
    if why := refused(*options):
        print(
            f"the servers listen on this machine's own network, where other users reach them ({why}): SECURITY.md "
            "names their ports",
            file=sys.stderr,
            flush=True,
        )
        os.environ[NETWORK] = f"host ({why})"
        return
    os.environ[NETWORK] = f"{_ELSEWHERE}{_number()}"
    sys.stdout.flush()
    command = wrapped(options, [sys.executable, "-m", "anncestry", *arguments])
    os.execve(command[0], command, os.environ)


# As a program


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _tie(parent: int) -> None:
    _check(_libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


def _unshare(kinds: int) -> None:
    """Enter new namespaces; who may not, within a user namespace of his own, in which he is the same user."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(kinds) == 0:
        return
    _check(_libc.unshare(kinds | _NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _own_network() -> None:
    _unshare(_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack_from("H", request, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _interface() -> None:
    """It is there as long as this program, or what it becomes, is."""
    name, address = _NOWHERE
    handle = os.open(_TUN, os.O_RDWR)
    os.set_inheritable(handle, True)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH14x", name, _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        place = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(any_socket, _SIOCSIFADDR, place)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", name, _IFF_UP))


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    given = (text.encode() or None for text in (source, target, kind))
    _check(_libc.mount(*given, ctypes.c_ulong(flags), options.encode() or None), f"mount on {target}")


def _unshare_mounts() -> None:
    _unshare(_NEWNS)
    _mount("", "/", "", _MS_REC | _MS_SLAVE)


def _private(folders: list[str]) -> None:
    _unshare_mounts()
    for folder in folders:
        for last in (False,) * 9 + (True,):
            try:
                Path(folder).mkdir(mode=0o700, exist_ok=True)
                _mount("tmpfs", folder, "tmpfs", 0, "mode=700")
                break
            except FileNotFoundError:  # another measurement that ends removes an empty one at any moment
                if last:
                    raise


def _closed(path: str) -> str:
    """The first folder on the way to `path` that others may not enter, "" if there is none."""
    ways = reversed(Path(path).resolve().parents)
    return next((str(way) for way in ways if not way.stat().st_mode & 0o001), "")


def _become_nobody(paths: list[str]) -> None:
    closed = {path: way for path in paths if (way := _closed(path))}
    if closed:
        _unshare_mounts()
        held = {path: os.open(path, os.O_PATH) for path in closed}
        for way in set(closed.values()):
            _mount("tmpfs", way, "tmpfs", 0, "mode=755")
        for path, handle in held.items():
            Path(path).mkdir(parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{handle}", path, "", _MS_BIND | _MS_REC)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _never_regain() -> None:
    """No program that this one becomes can have a capability. (Only root may say so; others have none anyway.)"""
    capability = 0
    while _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1


def _lose_power() -> None:
    _libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def _hold(given: dict[str, list[str]]) -> None:
    """What is asked. Ties are last, as the kernel forgets them where the user changes."""
    for file_name in given.get("--join", []):
        with open(file_name, "w") as file:
            file.write("0")
    for cpus in given.get("--affinity", []):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    for limit in given.get("--data", []):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    if "--network" in given:
        _own_network()
    if "--interface" in given:
        _interface()
    if "--private" in given:
        _private(given["--private"])
    if "--powerless" in given:
        _never_regain()
    for paths in given.get("--nobody", []):
        _become_nobody(paths.split(":"))
    if "--powerless" in given:
        _lose_power()
    for parent in given.get("--tie", []):
        _tie(int(parent))


def _main(arguments: list[str]) -> None:
    end = arguments.index("--")
    program, environment = arguments[end + 1 :], dict(os.environ)
    given: dict[str, list[str]] = {}
    for word in arguments[:end]:
        name, _, value = word.partition("=")
        if name.startswith("--"):
            given.setdefault(name, []).append(value)
        else:
            environment[name] = value
    try:
        _hold(given)
    except OSError as error:
        sys.exit(f"{' '.join(arguments[:end])}: {error.strerror}")
    try:
        os.execve(program[0], program, environment)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
