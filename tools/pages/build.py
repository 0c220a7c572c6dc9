"""Build the site of the documentation from the pages that mkdocs.yml names: python tools/pages/build.py [--check]

Without --check, the site holds a report as its example, drawn from the results that ship (evidence/). Everything is in
`scratch/site/`; the site itself is `scratch/site/html/`. Broken links and anchors, and pages outside `nav`, are errors.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).with_name("mkdocs.yml")
HERE = ROOT / "scratch" / "site"
EXPERIMENT = "smoke"
_TARGET = re.compile(r"!?\[[^]]*\]\(([^)#:\s]+)[^)\s]*\)")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the objects that only mkdocs makes."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: None)


def nav() -> list[str]:
    """The pages of the site, as paths from the root of the repository, in the site's order."""
    return list(_leaves(yaml.load(SITE.read_text(), Loader=_Loader)["nav"]))


def _leaves(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from _leaves(each)


def copy(to: Path) -> None:
    """Copy each page, and the files that are no page and that it links, to the same place in a new folder."""
    shutil.rmtree(to, ignore_errors=True)
    for page in nav():
        text = (ROOT / page).read_text()
        linked = [Path(os.path.normpath(Path(page).parent / target)) for target in _TARGET.findall(text)]
        beside = [str(path) for path in linked if path.suffix != ".md" and (ROOT / path).is_file()]
        for path in [page, *beside]:
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, to / path)


def example(work: Path) -> Path:
    """Draw the report of the results in evidence/, in a new folder; measures nothing. The folder of the report."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "config", work / "config")
    for part in ("data", "results"):
        # From its root: DVC finds no path of a repository from a folder within it.
        _run(ROOT, "dvc", "get", "--quiet", "--remote", "evidence", ".", f"evidence/{part}", "--out", str(work / part))
    # No other rule may run: results of other keys are an error here, and start no server.
    allowed = ["--allowed-rules", "all", "table", "report"]
    config = ["--config", f"experiment={EXPERIMENT}", "config_dir=config"]
    command = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1", "--nocolor", *allowed, *config]
    # No commit is quoted: the page is of these results, whatever else this checkout has.
    _run(work, *command, ANNCESTRY_CONFIG="config", PYTHONPATH=f"{ROOT}/src:{ROOT}", GIT_DIR=os.devnull)
    return work / "reports" / EXPERIMENT


def _run(folder: Path, *command: str, **own: str) -> None:
    """Run a module of this environment in a folder; what it says is shown only if it fails."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANNCESTRY_")}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**inherited, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"the example can't be drawn from evidence/ (make evidence-renew?):\n{done.stdout}")


def site(here: Path, check: bool = False) -> Path:
    """Build the site in a folder, with its example unless its pages are only to be checked. The folder of the site."""
    pages, html = here / "pages", here / ("checked" if check else "html")
    copy(pages)
    text = SITE.read_text()
    if not check:
        drawn = example(here / "example")
        # For the link in `nav`. The rest comes after mkdocs, which would take its tables in Markdown for pages.
        (pages / "example").mkdir()
        shutil.copyfile(drawn / "index.html", pages / "example" / "index.html")
        text += "  - Example: example/index.html\n"
    made = here / "mkdocs.yml"
    made.write_text(f"{text}docs_dir: {pages}\nsite_dir: {html}\n")
    # Not --quiet: without its warnings, mkdocs finds nothing that is wrong.
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(made)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        wrong = [line for line in done.stdout.splitlines() if not line.startswith("INFO")]
        raise SystemExit("\n".join(wrong) or done.stdout)
    if not check:
        shutil.copytree(drawn, html / "example", dirs_exist_ok=True)
    return html


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only check pages and links, without the example")
    check = parser.parse_args().check
    html = site(HERE, check)
    if not check:
        print(f"site: {(html / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
