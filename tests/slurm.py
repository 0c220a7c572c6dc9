"""A real Slurm on this machine alone: one node, a controller and a munge of its own, stopped with the block."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import until

SBIN = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
_CORES, _MEMORY_MIB = 8, 65536
"""What the node says of itself, so that what the profile asks for fits whatever machine this is."""


@dataclass(frozen=True)
class Slurm:
    """A running one; `environment` is how its commands find it."""

    folder: Path
    environment: Mapping[str, str]
    daemons: tuple[subprocess.Popen[bytes], ...]

    def ask(self, *command: str) -> str:
        """What a command of Slurm's says."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def jobs(self) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.ask("squeue", "--noheader", "--format=%i").split()

    def history(self) -> list[dict[str, str]]:
        """All jobs since the start, in the order of submission, as `scontrol show job` has them."""
        text = self.ask("scontrol", "show", "job", "--oneliner")
        return [
            dict(word.split("=", 1) for word in line.split() if "=" in word)
            for line in text.splitlines()
            if line.startswith("JobId=")
        ]

    def drain(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        for job in self.jobs():
            self.ask("scancel", job)
        until(lambda: not self.jobs(), "jobs to end")


def _ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return numbers


def _configure(folder: Path, host: str) -> None:
    controller, node = _ports(2)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    key = folder / "munge" / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(f"""
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=3600
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={_CORES} RealMemory={_MEMORY_MIB}
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP
""")
    # Snakemake's job step takes SLURM_CONF out of the environment of its srun; a cluster's is where srun looks anyway.
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(
        f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n'
    )
    (folder / "bin" / "srun").chmod(0o755)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n")


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Slurm on loopback with all its files in `folder` (of a short path: munge's socket is there)."""
    host = socket.gethostname().partition(".")[0]
    _configure(folder, host)
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}/bin{os.pathsep}{SBIN}"}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> None:
        program = shutil.which(name, path=SBIN)
        assert program is not None, f"{name} is missing: make slurm installs Debian's"
        with open(folder / f"{name}.out", "wb") as out:
            daemons.append(
                subprocess.Popen(
                    [program, *words],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    munge = folder / "munge"
    running = Slurm(folder, environment, ())
    try:
        start(
            *("munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/munge.key"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        )
        until((munge / "socket").exists, "munged")
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D", "-c", "-N", host)
        running = Slurm(folder, environment, tuple(daemons))
        until(lambda: _idle(running), "the node to be idle: " + str(folder))
        yield running
    finally:
        if len(daemons) == 3:
            with suppress(AssertionError, subprocess.TimeoutExpired):
                running.drain()
        for daemon in reversed(daemons):
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def _idle(running: Slurm) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"],
        env={**os.environ, **running.environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout.split() == ["idle"]
