"""Package registries that are folders, which pip, go and mvn ask in place of a registry."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from anncestry.runtimes import building


def wheel(
    shelf: Path, name: str, version: str, files: Mapping[str, str | bytes] | None = None, tag: str = "py3-none-any"
) -> Path:
    """Put a wheel with these files into the folder `shelf`."""
    shelf.mkdir(parents=True, exist_ok=True)
    path, about = shelf / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    facts = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in {**(files or {}), **facts}.items():
            archive.writestr(member, content)
    return path


def pip_finds(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find what lies in the folder, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))


def module(proxy: Path, name: str, files: Mapping[str, str], version: str = "1.0.0") -> str:
    """Put a version of a Go module on a proxy that is a folder; its h1."""
    folder = proxy / name / "@v"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"v{version}.mod").write_text(files["go.mod"])
    (folder / f"v{version}.info").write_text(f'{{"Version": "v{version}"}}')
    sources = proxy.parent / "sources" / f"{name}@v{version}"
    with zipfile.ZipFile(folder / f"v{version}.zip", "w") as archive:
        for member, text in files.items():
            archive.writestr(f"{name}@v{version}/{member}", text)
            (sources / member).parent.mkdir(parents=True, exist_ok=True)
            (sources / member).write_text(text)
    return building.go_module_h1(sources, f"{name}@v{version}")


def go_finds(proxy: Path, modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let go get modules from the proxy alone, into the folder `modules`, where they can be removed."""
    monkeypatch.setenv("GOPROXY", proxy.as_uri())
    monkeypatch.setenv("GOMODCACHE", str(modules))
    monkeypatch.setenv("GOFLAGS", "-modcacherw")


def maven(tools: Path, monkeypatch: pytest.MonkeyPatch, then: str = "") -> None:
    """Put a program mvn first on the PATH: it leaves toy.jar, which holds what is asked for, and does `then`."""
    tools.mkdir()
    (tools / "mvn").write_text(
        f"#!{sys.executable}\n"
        "import re, sys, time\n"
        "from pathlib import Path\n"
        "place = Path(next(word for word in sys.argv if word.startswith('-DoutputDirectory=')).partition('=')[2])\n"
        "place.mkdir()\n"
        "asked = re.findall('<artifactId>(.*?)</artifactId><version>(.*?)<', Path('pom.xml').read_text())\n"
        "(place / 'toy.jar').write_text(str(asked[1:]))\n"
        f"{then}\n"
    )
    (tools / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
