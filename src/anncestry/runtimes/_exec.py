"""Become another program that the kernel kills when its parent dies.

Run as a file by `native`: `python -I -S _exec.py PARENT_PID [OPTION …] [NAME=VALUE …] -- PROGRAM [ARGUMENT …]`.
Options: `--join=FILE` enters the control group of that cgroup.procs, `--affinity=CPU,…` pins, `--data=BYTES` sets
RLIMIT_DATA: before the program starts, so that all of it and its children are held.
A program of its own instead of `preexec_fn`, which runs Python between fork and exec and may deadlock where threads
(gRPC's) hold locks. The given variables reach the program, not this interpreter: a server's LD_LIBRARY_PATH may hold
libraries that Python must not load.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _hold(option: str, value: str) -> None:
    if option == "--join":
        with open(value, "w") as file:
            file.write("0")
    elif option == "--affinity":
        os.sched_setaffinity(0, {int(cpu) for cpu in value.split(",")})
    elif option == "--data":
        resource.setrlimit(resource.RLIMIT_DATA, (int(value), int(value)))


def _main(arguments: list[str]) -> None:
    end = arguments.index("--")
    parent, overrides, program = int(arguments[0]), arguments[1:end], arguments[end + 1 :]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    environment = dict(os.environ)
    for override in overrides:
        name, _, value = override.partition("=")
        if not name.startswith("--"):
            environment[name] = value
            continue
        try:
            _hold(name, value)
        except OSError as error:
            sys.exit(f"{override}: {error.strerror}")
    try:
        os.execve(program[0], program, environment)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
