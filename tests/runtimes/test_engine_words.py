"""What the container engine says is understood, without one: names of images, another machine, what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from anncestry.errors import DataError, ServerError, UserError
from anncestry.runtimes import docker, images

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (f"docker.io/semitechnologies/weaviate@{DIGEST}", f"semitechnologies/weaviate@{DIGEST}"),
        (f"docker.io/library/redis@{DIGEST}", f"redis@{DIGEST}"),
        (f"127.0.0.1:5000/weaviate@{DIGEST}", f"127.0.0.1:5000/weaviate@{DIGEST}"),
        (f"quay.io/library/redis@{DIGEST}", f"quay.io/library/redis@{DIGEST}"),
    ],
)
def test_an_image_is_known_by_the_short_name_that_the_engine_gives_those_of_its_own_registry(
    asked: str, known: str
) -> None:
    def client(*names: str) -> Any:
        image = SimpleNamespace(id="1", attrs={"RepoDigests": list(names), "RootFS": {"Layers": ["sha256:b"]}})
        return SimpleNamespace(images=SimpleNamespace(get=lambda name: image))

    assert images.pulled_image(client(known), asked).reference == asked
    with pytest.raises(DataError, match="the engine knows it as"):
        images.pulled_image(client(f"other@{DIGEST}"), asked)


@pytest.mark.parametrize("address", ["tcp://10.0.0.7:2375", "ssh://somebody@elsewhere"])
def test_an_engine_of_another_machine_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(UserError, match=f"DOCKER_HOST is {address}: containers must run on this machine"):
        docker.connect()


def test_what_the_engine_refuses_while_images_are_made_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise APIError("500 Server Error", explanation="no space left on device")

    monkeypatch.setattr(docker, "connect", lambda: None)
    monkeypatch.setattr(docker, "remnants", lambda client: refuse())
    with pytest.raises(ServerError, match=r"the container engine at .* refuses: no space left on device"):
        docker.pod_for({"runtime": "docker"}, [])
    monkeypatch.setattr(docker, "remnants", lambda client: (_ for _ in ()).throw(ConnectionError("Connection refused")))
    with pytest.raises(ServerError, match="does not answer any more"):
        docker.pod_for({"runtime": "docker"}, [])
