"""Small programs in containers, for tests of the docker runtime: no shell, no registry, only what this machine has."""

from __future__ import annotations

import shutil
from pathlib import Path

import docker
import pytest

from anncestry.errors import UserError
from anncestry.runtimes.base import NO_LIMITS, Limits
from anncestry.runtimes.docker import Container, Pod, connect, remnants
from anncestry.runtimes.images import ImageFacts, local_image


def engine() -> docker.DockerClient:
    """The engine that answers. Without one these tests fail, and say how they can run: they are never skipped."""
    try:
        return connect()
    except UserError as error:
        pytest.fail(f"`make test-docker` runs these tests beside a container engine of their own. {error}")


def programs(folder: Path, *names: str) -> Path:
    """An artifact folder with copies of these programs of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = shutil.which(name)
        assert found is not None
        shutil.copy2(Path(found).resolve(), folder / name)
    return folder


class Bench:
    """Pods of one artifact folder; nothing of them is left at the end."""

    def __init__(self, client: docker.DockerClient, folder: Path, artifact: Path) -> None:
        self.client, self.folder, self.artifact = client, folder, artifact
        self.image: ImageFacts = local_image(client, "test", artifact)
        self.pods: list[Pod] = []

    def pod(self, **options: object) -> Pod:
        pod = Pod(self.client, {self.artifact: self.image}, **options)  # type: ignore[arg-type]
        self.pods.append(pod)
        return pod

    def start(
        self, pod: Pod, member: str, *argv: str, limits: Limits = NO_LIMITS, ports: tuple[int, ...] = ()
    ) -> Container:
        return pod.start(
            member,
            f"test {member}",
            [self.artifact / argv[0], *argv[1:]],
            {},
            self.folder,
            self.folder / f"{member}.log",
            limits,
            ports,
        )

    def close(self) -> None:
        sessions = {pod.session for pod in self.pods}
        for pod in self.pods:
            pod.close()
        assert [found for found in remnants(self.client) if found.session in sessions] == []
