"""Many calls of one checkout's program or workflow, each in a process of its own, without starting Python each time.

python equality_calls.py CHECKOUT, with [[FOLDER, FILE, [ARGUMENT, …]], …] as JSON on standard input: each call is made
in FOLDER, its exit status and output go to FILE. The arguments are those of `anncestry`, or `jobs EXPERIMENT`.
Of the checkout it knows the Snakefile, and from pyproject.toml where the program's `main` is.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path


def program(checkout: Path) -> Callable[[list[str]], int | None]:
    """What `anncestry` runs."""
    scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["anncestry"].partition(":")
    return lambda arguments: getattr(importlib.import_module(module), function)(arguments)


def jobs(checkout: Path, experiment: str) -> None:
    """Print each job that Snakemake would run here: its files, message, and the priority that orders sessions."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings import types

    config = types.ConfigSettings(config={"experiment": experiment, "config_dir": "config"})
    with SnakemakeApi(types.OutputSettings(quiet={types.Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=types.ResourceSettings(cores=1),
            config_settings=config,
            workflow_settings=types.WorkflowSettings(),
            snakefile=checkout / "Snakefile",
            workdir=Path(),
        )
        with contextlib.redirect_stdout(io.StringIO()):
            workflow.dag(types.DAGSettings()).printrulegraph()  # builds the graph of all jobs
        for line in sorted(_job(job) for job in workflow._workflow.dag.jobs):
            print(line)


def _job(job) -> str:
    priority = job.rule.priority(job.wildcards) if callable(job.rule.priority) else job.rule.priority
    files = {
        label: sorted(map(str, found)) for label, found in (("out", job.output), ("in", job.input), ("log", job.log))
    }
    return json.dumps({"rule": job.rule.name, **files, "priority": priority, "message": job.message})


def call(act: Callable[[], int | None], folder: str, file: Path) -> list[str]:
    """Make a call in a child of this process; returns the modules that it imported."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile("w+") as imported:
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            _run(act, out.fileno(), err.fileno(), imported)
        _, status = os.waitpid(child, 0)
        for stream in (out, err, imported):
            stream.seek(0)
        said = f"exit status {os.waitstatus_to_exitcode(status)}\n--- output\n{out.read().decode()}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{said}--- errors\n{err.read().decode()}")
        return imported.read().split()


def _run(act: Callable[[], int | None], out: int, err: int, imported: io.TextIOBase) -> None:
    """The child's part; never returns."""
    status: int | None = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        status = act()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        imported.write(" ".join(list(sys.modules)))
        imported.flush()
        os._exit(status or 0)


def main() -> None:
    checkout = Path(sys.argv[1])
    main_of = program(checkout)
    for folder, file, arguments in json.load(sys.stdin):
        if arguments[0] == "jobs":
            needed = call(lambda given=arguments: jobs(checkout, given[1]), folder, Path(file))
        else:
            needed = call(lambda given=arguments: main_of(given), folder, Path(file))
        # What a call imported is imported before the next: it starts in a tenth of the time, and shares nothing else.
        for name in needed:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


if __name__ == "__main__":
    main()
