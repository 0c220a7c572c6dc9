"""`anncestry init`: a project of one's own, which is all that a run needs beside the installed package."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from anncestry.cells.plan import run_of
from anncestry.commands import Run, command
from anncestry.errors import ConfigError
from anncestry.home import CONFIG, EPOCHS, PROFILES

_FILES = Path(__file__).parent / "project"
_ALL = "all"
_SMALLEST = "smoke"

IGNORED = ("/data", "/results", "/reports/", "/scratch/", "/logs/", "/own/", ".snakemake/", ".venv")
"""What git does not keep of a project: DVC keeps data and results, and the rest can be made again."""

NOT_OF_DVC = (
    "# What a killed job left behind, and what was damaged and set aside.",
    *("/data/**/.*", "/results/**/.*", "*.damaged"),
    *("/.venv", "/.snakemake", "/scratch", "/own", "/logs", "/reports"),
)

_DVC = """# What DVC compares. The benchmark itself is Snakemake's: DVC would delete results before it makes them again.
stages:
  verify:
    cmd: anncestry verify
    deps: [config, results]
metrics: [results/metrics]
"""


def init(run: Run, options: argparse.Namespace) -> None:
    """Make a project of your own: Snakefile, config, dvc.yaml and README in a new or empty folder."""
    folder = options.folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not an empty folder; name another one, and nothing of yours is touched")
    experiments = _experiments(options.experiments)
    there = folder if folder.exists() else folder.parent
    there.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=there, prefix=f".{folder.name}.") as temporary:
        fresh = Path(temporary) / "project"
        _fill(fresh, experiments)
        if there == folder:  # which may be where the command runs, or a mount: it stays what it is
            for path in fresh.iterdir():
                path.rename(folder / path.name)
        else:
            fresh.rename(folder)
    print(f"{options.folder} is a project. Next:\n  cd {options.folder}\n  {run_of(_first(experiments))}")


def _fill(folder: Path, experiments: list[Path]) -> None:
    config = folder / "config"
    (config / "experiments").mkdir(parents=True)
    # Epochs say what the package's own code means: they come with it.
    for path in [*CONFIG.glob("*.yaml"), *experiments]:
        if path != EPOCHS:
            shutil.copyfile(path, config / path.relative_to(CONFIG))
    shutil.copytree(PROFILES / "default", folder / "profiles" / "default", copy_function=shutil.copyfile)
    for path in _FILES.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    readme = folder / "README.md"
    first = _first(experiments)
    readme.write_text(readme.read_text().replace("{command}", run_of(first)).replace("{experiment}", first))
    (folder / "dvc.yaml").write_text(_DVC)
    (folder / ".gitignore").write_text("\n".join(IGNORED) + "\n")
    (folder / ".dvcignore").write_text("\n".join(NOT_OF_DVC) + "\n")


def _experiments(names: list[str]) -> list[Path]:
    known = {path.stem: path for path in sorted((CONFIG / "experiments").glob("*.yaml"))}
    if names == [_ALL]:
        return list(known.values())
    for name in names:
        if name not in known:
            raise ConfigError(f"--experiments: unknown experiment {name!r}; known: {', '.join(known)}, or {_ALL}")
    return [known[name] for name in names]


def _first(experiments: list[Path]) -> str:
    """Which experiment to begin with."""
    names = [path.stem for path in experiments]
    return _SMALLEST if _SMALLEST in names else names[0]


def add(commands: Any) -> None:
    parser = command(commands, init)
    parser.add_argument("folder", type=Path, help="is made if it does not exist")
    parser.add_argument(
        "--experiments",
        nargs="+",
        default=[_SMALLEST],
        metavar="NAME",
        help=f"experiments of the package to copy, or {_ALL!r} (default: {_SMALLEST})",
    )
