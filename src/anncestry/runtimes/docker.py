"""Members as containers: one network a server, limits, what became of each, and nothing of it left afterwards.

Everything made here carries labels: whose it is, and which process made it. What a killed run left behind is found by
them, named, and removed only on request.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import psutil
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container as EngineContainer
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool, LogConfig

from anncestry.errors import ServerError, UserError
from anncestry.provenance.running import owner, owner_alive
from anncestry.runtimes import control_groups
from anncestry.runtimes.base import POLL_S, Ending, Handle, Limits, Program, Runner, end, is_clean
from anncestry.runtimes.images import PARTS, ImageFacts, file_of, image_of, local_image
from anncestry.runtimes.native import free_ports, is_passed

LABEL = "anncestry.session"
OWNER = "anncestry.owner"
_TIMEOUT_S = 180.0
_FIRST_HOST = 10  # of a network's addresses; the first few are the engine's own
_OOM_SETTLE_S = 2.0
_KILLED = 137
_BY = "container engine"
_MIB = 1 << 20
_ENGINE_ERRORS = (DockerException, OSError)  # requests' own are OSErrors


class EngineGone(ServerError):
    """The container engine itself does not answer any more."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(
            f"{name}: the container engine at {where()} does not answer any more ({_engine_reason(error)}): start it "
            "again; `anncestry leftovers` then names what it still has of this run"
        )


# The engine


def where() -> str:
    """The address of the engine that is asked: DOCKER_HOST, else the usual socket."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def connect() -> docker.DockerClient:
    """A client of the container engine; UserError says what to do where none answers, or one of another machine."""
    place = urlsplit(where())
    if place.scheme not in ("unix", "npipe") and place.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise UserError(
            f"DOCKER_HOST is {where()}: containers must run on this machine, as their data folders and ports are those "
            "of here; unset it, or measure on that machine"
        )
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
        client.ping()
    except _ENGINE_ERRORS as error:
        reason = _engine_reason(error)
        raise UserError(
            f"no container engine answers at {where()} ({reason}): start one, or set DOCKER_HOST; if Docker "
            "is installed, `anncestry engine COMMAND …` starts one for a command"
        ) from None
    return client


def _engine_reason(error: BaseException) -> str:
    text = str(error)
    for known in ("Permission denied", "No such file or directory", "Connection refused", "timed out"):
        if known in text:
            return {"Permission denied": "permission denied: is this user in the group docker?"}.get(known, known)
    return text.splitlines()[0][:200] if text else type(error).__name__


def _explanation(error: BaseException) -> str:
    return str(getattr(error, "explanation", None) or error)


# Whose a container is


def _machine() -> str:
    """This machine, told apart from others and from itself before it was started again."""
    with suppress(OSError):
        return f"{platform.node()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()[:8]}"
    return f"{platform.node()}/unknown"


def _owner_alive(label: str) -> bool | None:
    """Whether the process of an owner's label still runs; None if it is another machine's."""
    machine, _, process = label.rpartition("/")
    if machine == _machine():
        return owner_alive(process)
    return False if machine.startswith(f"{platform.node()}/") else None


@dataclass(frozen=True)
class Remnant:
    """A container or network of ours that an engine holds. `used`: its process runs (None: on another machine)."""

    kind: str
    name: str
    id: str
    session: str
    owner: str
    used: bool | None
    _remove: Callable[[], None]
    paused: bool = False

    def remove(self) -> None:
        """Remove it; ServerError if the engine refuses."""
        try:
            self._remove()
        except NotFound:
            pass
        except APIError as error:
            raise ServerError(f"{self.kind} {self.name} can't be removed: {_explanation(error)}") from None


def remnants(client: docker.DockerClient) -> list[Remnant]:
    """Everything that carries our labels, containers before networks."""
    labelled = {"label": LABEL}
    containers = client.containers.list(all=True, filters=labelled, ignore_removed=True)
    networks = client.networks.list(filters=labelled)
    return [
        *(_remnant("container", one, one.labels, partial(_remove, one)) for one in containers),
        *(_remnant("network", one, one.attrs["Labels"], one.remove) for one in networks),
    ]


def _remnant(kind: str, thing: Any, labels: Mapping[str, str], remove: Callable[[], None]) -> Remnant:
    whose = labels.get(OWNER, "")
    paused = getattr(thing, "status", "") == "paused"
    return Remnant(kind, str(thing.name), str(thing.id), labels[LABEL], whose, _owner_alive(whose), remove, paused)


def _remove(container: EngineContainer) -> None:
    """Remove it, whatever it does. One that is paused can't be killed."""
    if container.status == "paused":
        container.unpause()
    container.remove(force=True, v=True)


# One server's containers


def pod_for(topology: Mapping[str, Any], artifacts: Sequence[Path]) -> Pod:
    """A pod for members from these artifact folders, with an image of each.

    Names what killed runs left behind, on standard error: it holds memory, and perhaps ports.
    """
    client = connect()
    try:
        behind = [remnant.name for remnant in remnants(client) if remnant.used is False]
        if behind:
            print(
                f"left behind by killed runs: {', '.join(behind)} (`anncestry leftovers --clean` removes them)",
                file=sys.stderr,
                flush=True,
            )
        images = {folder: image_of(client, name, folder) for name, folder in _programs(artifacts)}
        return Pod(client, images, publish=bool(topology.get("publish", False)))
    except APIError as error:
        raise ServerError(f"the container engine at {where()} refuses: {_explanation(error)}") from None
    except _ENGINE_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of a file of this machine
        raise EngineGone("the images of a server", error) from None


def _programs(artifacts: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Name and folder of every artifact, and of every part that stands in one."""
    for artifact in artifacts:
        folder = artifact.resolve()
        yield _image_name(folder), folder
        for part in sorted((folder / PARTS).glob("*")):
            yield _image_name(part), part


def _of_host(name: str, value: str) -> bool:
    """Whether a variable of a program is only what this user's shell has: home, language and the like."""
    return is_passed(name) and os.environ.get(name) == value


def _image_name(folder: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "-", folder.name.partition("@")[0].lower()).strip("-") or "artifact"


class Pod(Runner):
    """A network, and the containers on it. Addresses are known before anything starts, and stay.

    Clients reach a container at its address where the engine is a process of this machine; where it is not (in a
    virtual machine, say), or with `publish`, through ports that the engine publishes on loopback, by a proxy that costs
    about 0.5 ms a request: a record says which.
    """

    listen = "0.0.0.0"
    apart = True

    def __init__(
        self,
        client: docker.DockerClient,
        images: Mapping[Path, ImageFacts],
        publish: bool = False,
        session: str | None = None,
    ) -> None:
        self.client = client
        self._images = dict(images)
        self._joined: dict[tuple[Path, ...], ImageFacts] = {}
        self.session = session or secrets.token_hex(4)
        self._labels = {LABEL: self.session, OWNER: f"{_machine()}/{owner(os.getpid())}"}
        self._lock = threading.Lock()
        self._running: list[Container] = []
        self._addresses: dict[str, str] = {}
        self._published: dict[tuple[str, int], int] = {}
        self.network = self._make_network()
        bridge = Path("/sys/class/net") / f"br-{str(self.network.id)[:12]}"
        self.publish = publish or not bridge.exists()

    @property
    def path(self) -> str:
        """How requests travel from the clients here to the containers."""
        return "a port that the engine publishes" if self.publish else "the container's address on the bridge"

    def _make_network(self) -> Network:
        """A bridge with a subnet of its own choosing of the engine's, but declared: only such a one gives addresses
        that are asked for, and a member that was cut off and comes back must have the one it had."""
        name = f"anncestry-{self.session}"
        try:
            probe = self.client.networks.create(name, driver="bridge", labels=self._labels)
            try:
                probe.reload()
                subnet = probe.attrs["IPAM"]["Config"][0]["Subnet"]
            finally:
                probe.remove()
            self.subnet = ipaddress.ip_network(subnet)
            pool = IPAMPool(subnet=subnet)
            return self.client.networks.create(
                name, driver="bridge", labels=self._labels, ipam=IPAMConfig(pool_configs=[pool])
            )
        except APIError as error:
            raise ServerError(f"network {name}: the engine can't make it: {_explanation(error)}") from None

    def host(self, member: str) -> str:
        return self._addresses.setdefault(member, str(self.subnet[_FIRST_HOST + len(self._addresses)]))

    def reached(self, member: str, port: int) -> str:
        """The member's address, or a published port: of the same number, for the first member that wants that."""
        if not self.publish:
            return f"{self.host(member)}:{port}"
        if (member, port) not in self._published:
            taken = port in self._published.values()
            self._published[member, port] = free_ports(1)[0] if taken else port
        return f"127.0.0.1:{self._published[member, port]}"

    def run(self, program: Program) -> Container:
        """Start it in a container, as this user, from the image of the artifact that its program belongs to.

        `cwd` is bound to the same path inside as outside: the data lies where it lies for a native process, and what
        configuration files say of paths holds in both.
        """
        folder, image = self._image(program.argv)
        title = program.title
        container = self._create(program, image, folder)
        made = Container(self, program, container, image)
        with self._lock:
            self._running.append(made)
        try:
            container.start()
            container.reload()
        except APIError as error:
            reason = _explanation(error)
            made.stop(0)
            if "port is already allocated" in reason or "address already in use" in reason:
                raise ServerError(f"{title}: address already in use: {reason}") from None
            raise ServerError(f"{title}: the engine can't start its container: {reason}") from None
        except BaseException:
            made.stop(0)
            raise
        made.started()
        return made

    def _image(self, argv: Sequence[str | Path]) -> tuple[Path, ImageFacts]:
        """The folder of the artifact that a program belongs to, and an image with all that its arguments name."""
        owners = [self._owner(argument) for argument in argv]
        folder = owners[0]
        if folder is None:
            raise ValueError(f"{argv[0]} belongs to no artifact")
        beside = sorted({owner for owner in owners if owner is not None} - {folder})
        if not beside or self._images[folder].programs:
            return folder, self._images[folder]
        key = (folder, *beside)
        if key not in self._joined:
            self._joined[key] = local_image(self.client, _image_name(beside[0]), folder, beside)
        return folder, self._joined[key]

    def _owner(self, argument: str | Path) -> Path | None:
        """The artifact's folder that an argument names something in; a part's lies in that of its system."""
        owners = [folder for folder in self._images if f"{folder}/" in str(argument)]
        return max(owners, key=lambda folder: len(folder.parts), default=None)

    def read(self, path: Path) -> bytes | None:
        folder = self._owner(path)
        if folder is None or not self._images[folder].programs:
            return super().read(path)
        image = self._images[folder]
        try:
            return file_of(self.client, image, image.inside(folder, path), self._labels)
        except APIError as error:
            raise ServerError(f"image {image.reference}: can't be read: {_explanation(error)}") from None

    def _create(self, program: Program, image: ImageFacts, folder: Path) -> EngineContainer:
        """The program's container, not started, from the `image` of the artifact in `folder`."""
        member, cwd = program.member, str(program.cwd)
        entrypoint, *command = (image.inside(folder, argument) for argument in program.argv)
        own = {name: value for name, value in program.env.items() if not _of_host(name, value)}
        name = f"anncestry-{self.session}-{member}"
        endpoint = self.client.api.create_endpoint_config(ipv4_address=self.host(member), aliases=[member])
        try:
            return self.client.containers.create(
                image.id,
                entrypoint=[entrypoint],
                command=command,
                name=name,
                hostname=member,
                # What says who and where this user is on the host means nothing in there.
                environment={name: image.inside(folder, value) for name, value in own.items()},
                working_dir=cwd,
                user=f"{os.getuid()}:{os.getgid()}",
                # Official images let any user of group 0 write where they must (OpenShift's convention).
                group_add=[0] if image.programs else None,
                volumes={cwd: {"bind": cwd, "mode": "rw"}},
                labels=self._labels,
                network=str(self.network.name),
                networking_config={str(self.network.name): endpoint},
                ports=self._ports(program),
                # No health check of the engine's: it would run a program inside of what is measured, again and again.
                healthcheck={"test": ["NONE"]},
                log_config=LogConfig(type="json-file", config={"max-size": "64m"}),
                **_bounds(program.limits),
            )
        except APIError as error:
            if error.status_code == 409:
                raise UserError(
                    f"container name {name} is taken: `anncestry leftovers` lists what a killed run left behind"
                ) from None
            raise ServerError(f"{program.title}: the engine can't make its container: {_explanation(error)}") from None

    def _ports(self, program: Program) -> dict[str, tuple[str, int]]:
        """The program's ports, each with the address of this machine that it is published at, if they are."""
        if not self.publish:
            return {}
        at = {port: self.reached(program.member, port).rpartition(":")[2] for port in program.ports}
        return {f"{port}/tcp": ("127.0.0.1", int(published)) for port, published in at.items()}

    def _gone(self, container: Container) -> None:
        with self._lock:
            if container in self._running:
                self._running.remove(container)
            last = not self._running
        if last:
            self._remove_network()

    def close(self) -> None:
        """Stop what still runs, and remove the network. EngineGone, once all are killed, if the engine is."""
        gone: EngineGone | None = None
        for container in list(self._running):
            try:
                container.stop(0)
            except EngineGone as error:
                gone = error
        if gone is not None:
            raise gone
        self._remove_network()

    def _remove_network(self) -> None:
        with suppress(NotFound):
            self.network.remove()


def _bounds(limits: Limits) -> dict[str, Any]:
    """Limits as the engine takes them."""
    bounds: dict[str, Any] = {}
    if limits.cpus is not None:
        bounds["nano_cpus"] = round(limits.cpus * 1e9)
    if limits.memory_mib is not None:
        bounds.update(mem_limit=limits.memory_mib * _MIB, memswap_limit=limits.memory_mib * _MIB)
    return bounds


class Container(Handle):
    """One container. Its output is written to `log_path` when it is stopped, and kept there."""

    log_path: Path

    def __init__(self, pod: Pod, program: Program, container: EngineContainer, image: ImageFacts) -> None:
        self.name, self.member, self.log_path = program.title, program.member, program.log_path
        self.image = image
        self._pod, self._container, self._limits = pod, container, program.limits
        self._process: psutil.Process | None = None
        self._groups: control_groups.Folders = {}
        self._ending: Ending | None = None

    def started(self) -> None:
        """Learn its main process, where this machine is the engine's: looking at it costs the engine nothing."""
        pid = int(self._container.attrs["State"]["Pid"])
        self._process, self._groups = None, {}
        try:
            if pid and str(self._container.id) in Path(f"/proc/{pid}/cgroup").read_text():
                self._process = psutil.Process(pid)
                self._groups = control_groups.of_process(pid)
        except (OSError, psutil.Error):
            pass

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def alive(self) -> bool:
        if self._ending is not None:
            return False
        if self._process is not None:
            try:
                return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                return False
        return str(self._state()["Status"]) in ("running", "paused", "restarting")

    def check_alive(self) -> None:
        """ServerError with what became of it and the end of its log if it is gone."""
        if not self.alive():
            raise ServerError(f"{self.name} (container {self._container.name}) {self._fate()}", self.log_tail())

    def _state(self) -> dict[str, Any]:
        try:
            self._container.reload()
        except NotFound:
            return {"Status": "removed"}
        except APIError:
            raise
        except _ENGINE_ERRORS as error:
            raise EngineGone(self.name, error) from None
        return dict(self._container.attrs["State"])

    def _fate(self) -> str:
        """How it ended. The engine learns of it a little later than the kernel."""
        deadline = time.monotonic() + _OOM_SETTLE_S
        state = self._state()
        while time.monotonic() < deadline and (
            state["Status"] == "running" or (state.get("ExitCode") == _KILLED and not state.get("OOMKilled"))
        ):
            time.sleep(POLL_S)
            state = self._state()
        if state.get("OOMKilled"):
            limit = self._effective()["memory_mib"]
            return "was killed for lack of memory at " + (f"{limit} MiB" if limit else "all that the machine has")
        if "ExitCode" not in state:
            return "was removed by somebody else"
        problem = f": {state['Error']}" if state.get("Error") else ""
        return f"is not running any more (exit code {state['ExitCode']}{problem})"

    def log_tail(self, n: int = 15) -> str:
        if self._ending is not None:
            return super().log_tail(n)
        try:
            return str(self._container.logs(tail=n).decode(errors="replace")).rstrip("\n")
        except _ENGINE_ERRORS:
            return ""

    def _effective(self) -> dict[str, float | int | None]:
        host = self._container.attrs["HostConfig"]
        return {
            "cpus": host["NanoCpus"] / 1e9 if host.get("NanoCpus") else None,
            "memory_mib": host["Memory"] // _MIB if host.get("Memory") else None,
        }

    def limits(self) -> dict[str, Any]:
        """Each limit that was asked, as the engine says that it enforces it."""
        effective = self._effective()
        return {
            name: {"asked": value, "effective": effective[name], "by": _BY if effective[name] == value else None}
            for name, value in self._limits.asked().items()
        }

    def usage(self) -> dict[str, Any]:
        return dict(control_groups.usage(self._groups))

    def facts(self) -> dict[str, Any]:
        return {
            "image": self.image.reference,
            "image_id": self.image.id,
            "layers": self.image.layers,
            "host_files": self.image.host_files,
            "reached_by": self._pod.path,
        }

    def stop(self, term_wait_s: float) -> Ending:
        """SIGTERM, up to `term_wait_s` seconds of patience, then SIGKILL; removed on return, its output kept.

        EngineGone if nobody is there to remove it; it is killed all the same where it is a process of this machine.
        """
        if self._ending is not None:
            return self._ending
        started = time.monotonic()
        try:
            return self._stop(term_wait_s)
        except APIError:
            raise
        except (EngineGone, *_ENGINE_ERRORS) as error:
            if self._process is not None:
                with suppress(psutil.Error):
                    self._process.kill()
            self._ending = Ending("SIGKILL", -signal.SIGKILL, time.monotonic() - started, False)
            with suppress(*_ENGINE_ERRORS):
                self._pod._gone(self)
            raise error if isinstance(error, EngineGone) else EngineGone(self.name, error) from None

    def _stop(self, term_wait_s: float) -> Ending:
        started = time.monotonic()
        sent: str | None = None
        clean, code, killed = True, -1, False
        try:
            if self._state()["Status"] == "paused":
                self._container.unpause()
            sent, clean = end(lambda: self._state()["Status"] == "running", self._signal, term_wait_s)
            if self._state()["Status"] not in ("removed", "created"):
                code = int(self._container.wait(timeout=_TIMEOUT_S)["StatusCode"])
                killed = bool(self._state().get("OOMKilled"))
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(NotFound), open(self.log_path, "ab") as file:
                for part in self._container.logs(stream=True, follow=False):
                    file.write(part)
        finally:
            with suppress(NotFound):
                self._container.remove(force=True, v=True)
            if 128 < code <= 128 + signal.SIGRTMAX:  # as for a process: negative where a signal ended it
                code = 128 - code
            clean = is_clean(clean, sent, code, term_wait_s, killed)  # -1: somebody else removed it
            self._ending = Ending(sent, code, time.monotonic() - started, clean)
            self._pod._gone(self)
        return self._ending

    def _signal(self, name: str) -> None:
        """Send it a signal; one that has ended since it was looked at needs none."""
        try:
            self._container.kill(signal=name)
        except APIError as error:
            if error.status_code != 409:
                raise

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """ServerError for what the engine refuses: of one that has ended, how it did. EngineGone where none answers."""
        try:
            yield
        except APIError as error:
            said = f": the engine refuses: {_explanation(error)}" if self.alive() else f" {self._fate()}"
            raise ServerError(f"{self.name}{said}") from None
        except _ENGINE_ERRORS as error:
            raise EngineGone(self.name, error) from None

    # Faults

    def pause(self) -> None:
        with self._refused():
            self._container.pause()

    def resume(self) -> None:
        with self._refused():
            self._container.unpause()

    def kill(self) -> None:
        """SIGKILL; the container stays, so that it can be started again."""
        with self._refused():
            self._container.kill()
            self._container.wait(timeout=_TIMEOUT_S)

    def restart(self) -> None:
        with self._refused():
            self._container.start()
            self._container.reload()
            self.started()

    def cut_off(self) -> None:
        with self._refused():
            self._pod.network.disconnect(self._container)

    def reconnect(self) -> None:
        """Put it back, at the address that it had."""
        with self._refused():
            self._pod.network.connect(self._container, ipv4_address=self._pod.host(self.member), aliases=[self.member])
