"""What pages tell a newcomer to type is typed here, in their order: each command does what its page says.

Nothing is measured: where a page runs an experiment, Snakemake makes its whole plan.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry import cli
from anncestry.cells import config
from anncestry.datasets import download
from anncestry.workflow import Choice, expand
from tests.builders import shelves
from tests.toy import ROOT

PROGRAMS = ("anncestry", "make", "snakemake", "python")
ASKING = {"summary", "why", "compare", "verify"}
"""They need results: before there are any, they say which are missing."""
_STEP = re.compile(
    r"^ *```(?P<language>yaml|python)\n(?P<text>[\s\S]*?)^ *```"
    rf"|^ {{4,}}(?P<command>(?:{'|'.join(PROGRAMS)}) .*)$|`config/(?P<file>[a-z]+)\.yaml`",
    re.MULTILINE,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project's config, and files of vectors such as the pages name."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", "config")
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)
    draw = np.random.default_rng(2)
    for name in ("embeddings", "part-1", "part-2", "queries"):
        vectors = draw.normal(size=(11_000 if name == "embeddings" else 200, 384)).astype(np.float32)
        pq.write_table(pa.table({"emb": list(vectors)}), f"{name}.parquet")
    return tmp_path


def steps(page: str) -> Iterator[tuple[str, str]]:
    """What to type, in the page's order: ("command", words), ("python", code), ("FILE", YAML for config/FILE.yaml)."""
    file = ""
    for found in _STEP.finditer((ROOT / page).read_text()):
        if found["file"]:
            file = found["file"]
        elif found["command"]:
            yield "command", found["command"]
        else:
            yield (found["language"] if found["language"] == "python" else file), textwrap.dedent(found["text"])


def walk(page: str, here: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Do all steps of a page; the commands that were run, and the files that were edited."""
    done = []
    for kind, text in steps(page):
        program, *words = shlex.split(text) if kind == "command" else ("", "")
        if kind == "python":
            subprocess.run([sys.executable, "-c", text], check=True, timeout=900)
        elif kind != "command":
            with open(f"config/{kind}.yaml", "a") as target:
                target.write("\n" + text.replace("/data/", f"{here}/"))
        elif program == "make" and words[0] == "all":
            _dry_run(here, "all", "--config", words[1].replace("EXPERIMENT", "experiment"))
        elif program == "snakemake":
            _dry_run(here, *words)
        elif program == "anncestry":
            asking = bool(ASKING & set(words))
            assert cli.main(words) == (2 if asking else 0), text + capsys.readouterr().err
            assert not asking or "results/" in capsys.readouterr().err, f"{text}: nothing is measured yet"
        done.append(f"{program} {words[0]}" if program == "make" else program or kind)
    return done


def _dry_run(here: Path, *words: str) -> None:
    """Let Snakemake plan what it was told by `words`, of which the last are values of its config."""
    where = ["--snakefile", str(ROOT / "Snakefile"), "-n", "--quiet", "--nocolor"]
    command = [sys.executable, "-m", "snakemake", *where, *words, f"config_dir={here / 'config'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial(here, capsys):
    assert walk("docs/tutorial.md", here, capsys).count("anncestry") >= 5


def test_own_data_and_the_entry_of_files_in_place(here, capsys):
    base, queries = (np.random.default_rng(seed).normal(size=(n, 384)) for seed, n in ((1, 10_000), (2, 1_000)))
    np.save("base.npy", base.astype(np.float32))
    np.save("queries.npy", queries.astype(np.float32))
    assert "datasets" in walk("docs/own-data.md", here, capsys)
    entry = config.read_yaml(Path("config/datasets.yaml"))["mine-in-place"]
    assert [source["kind"] for source in entry["sources"]] == ["file"]
    download.run({**entry, "name": "mine-in-place"}, here / "download", here / "cache", key="k")
    np.testing.assert_array_equal(np.load(here / "download" / "base.npy"), base.astype(np.float32))


def test_the_tasks(here, capsys, monkeypatch):
    """Versions are asked of registries that are folders."""
    shelves.wheel(here / "shelf", "milvus", "2.3.4")
    shelves.pip_finds(here / "shelf", monkeypatch)
    module = "github.com/weaviate/weaviate"
    h1 = shelves.module(here / "proxy", module, {"go.mod": f"module {module}\n"}, "1.27.1")
    shelves.go_finds(here / "proxy", here / "modules", monkeypatch)
    monkeypatch.setenv("GOSUMDB", "off")
    done = walk("docs/tasks.md", here, capsys)
    assert done.count("make all") == 2 and {"workloads", "snakemake"} <= set(done)
    artifacts = {name: entry.get("artifact") for name, entry in config.read_yaml(Path("config/systems.yaml")).items()}
    old, new = artifacts["weaviate-1.27.0"], artifacts["weaviate-1.27.1"]
    assert new == {**old, "h1": h1.removeprefix("h1:"), "stamp": dict.fromkeys(old["stamp"], "v1.27.1")}
    before, after = (expand(Choice(folder, "default")).cells for folder in (ROOT / "config", Path("config")))
    assert before == after, "a version that is added has nothing else measured again"
