"""Versions of `data/` and `results/`: what DVC's pointers say, when they forbid a run, and `keep`, which moves them on.

A pointer (`results.dvc`, in git) names a listing (`….dir` in DVC's cache), which names every file by its md5. The
listing is in the cache of a clone exactly if that clone pulled or made it, and so tells whether its files are here.
The guard runs whenever Snakemake parses: it reads small texts and imports nothing of DVC.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anncestry.errors import DataError
from anncestry.provenance.records import read_json
from anncestry.user_cache import expanded

_LISTING = re.compile(r"^\s*(?:- )?md5: ([0-9a-f]{32})\.dir$", re.MULTILINE)
_FILES = re.compile(r"^\s*(?:- )?nfiles: (\d+)$", re.MULTILINE)
_KEY = re.compile(r"@([0-9a-f]{12})\.")
_COUNTED = {"load": "load", "query": "cell"}
"""Folders of `results/` whose records are counted in a commit message, and what one of them is called."""

_DERIVED = ("metrics/", "plots/")
"""Folders of `results/` that are made from the current table alone: what leaves them is no loss."""


@dataclass(frozen=True)
class Pointer:
    """What `NAME.dvc` says: the listing of the folder NAME, and how many files that holds."""

    name: str
    listing: str
    files: int

    @property
    def object(self) -> str:
        """Where a cache or a remote keeps the listing, as DVC 3 lays them out."""
        return f"files/md5/{self.listing[:2]}/{self.listing[2:]}.dir"


def read_pointer(root: Path, name: str) -> Pointer | None:
    """The pointer of a folder; None where there is none, or one that lists nothing."""
    path = root / f"{name}.dvc"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    if "<<<<<<<" in text:
        raise DataError(f"{path}: holds a merge conflict; docs/dvc.md says how two branches' results are merged")
    return _pointer(name, text)


def pointer_at(root: Path, name: str, commit: str = "HEAD") -> Pointer | None:
    """The pointer of a folder as a commit has it; None where that has none, or one that lists nothing."""
    try:
        return _pointer(name, _git(root, "show", f"{commit}:./{name}.dvc"))
    except DataError:
        return None


def _pointer(name: str, text: str) -> Pointer | None:
    listing, files = _LISTING.search(text), _FILES.search(text)
    if listing is None or files is None or files[1] == "0":
        return None
    return Pointer(name, listing[1], int(files[1]))


class Settings:
    """The parts of `.dvc/config` (and of `.dvc/config.local`, which wins) that say where things lie."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".dvc"
        self._parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._parser.read([self._folder / "config", self._folder / "config.local"])
        except configparser.Error as error:
            raise DataError(f"{self._folder}/config: {' '.join(str(error).split())}") from None

    def _get(self, section: str, key: str) -> str | None:
        found = self._parser.get(section, key, fallback=None)
        return found.strip("'\"") if found else None

    def _path(self, text: str) -> Path:
        """DVC means paths relative to the folder of its config."""
        return self._folder / expanded(text)

    @property
    def cache(self) -> Path:
        """DVC's cache of this clone."""
        return self._path(self._get("cache", "dir") or "cache")

    def offered(self, pointer: Pointer) -> str | None:
        """The name of the default remote if the listing can be had from it, as far as a glance tells.

        A local remote is looked at; of one across a network it is believed, because a parse must not wait for it.
        """
        name = self._get("core", "remote")
        url = self._get(f"'remote \"{name}\"'", "url") if name else None
        if not url:
            return None
        return name if "://" in url or (self._path(url) / pointer.object).exists() else None


def refuse_half_clone(root: Path) -> None:
    """Refuse a checkout whose `results.dvc` names results that were not pulled, where there is a remote to pull from.

    Otherwise everything would be measured again, and the numbers of the team quietly replaced. Who has no such remote
    has nothing to wait for, and measures.
    """
    pointer = read_pointer(root, "results")
    if pointer is None:
        return
    settings = Settings(root)
    here = (root / "results").exists()
    if here and (settings.cache / pointer.object).exists():
        return
    remote = settings.offered(pointer)
    if remote:
        found = "results that are not here" if not here else "other results than were pulled here"
        raise DataError(
            f"results.dvc lists {found}: run `dvc pull results.dvc` (from remote {remote}) first, "
            "or `git rm results.dvc` to measure everything anew"
        )


@dataclass(frozen=True)
class Change:
    """Paths within a folder that one listing has and another has not, or has otherwise."""

    new: frozenset[str]
    changed: frozenset[str]
    gone: frozenset[str]

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Change:
        """What led from one listing (path → md5) to another."""
        return cls(
            new=frozenset(after.keys() - before.keys()),
            changed=frozenset(path for path in after.keys() & before.keys() if after[path] != before[path]),
            gone=frozenset(before.keys() - after.keys()),
        )

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


@dataclass(frozen=True)
class Kept:
    """The outcome of `keep`: the commit's message (empty if there was nothing new), and what the user should know."""

    message: str
    remarks: tuple[str, ...]


def keep(root: Path, experiment: str, *, gone: bool = False, push: bool = False) -> Kept:
    """Add `data/` and `results/` to DVC and commit their pointers, nothing else; with `push`, send the files off.

    A result that the pointer lists and that is not here stops it, unless `gone` says that it shall go: a clone that
    forgot to pull must not take its team's results away. Data can be made again: where some of it is not here, its
    pointer is left as it is.
    """
    if not (root / ".dvc").is_dir():
        raise DataError(f"{root.resolve()}: no DVC here (.dvc/ is missing)")
    if not (root / "results").is_dir():
        raise DataError("results/: missing, nothing to keep; run `snakemake --cores 8 all`")
    refuse_half_clone(root)
    cache = Settings(root).cache
    remarks: list[str] = []
    before: dict[str, Mapping[str, str]] = {}
    for name in ("results", "data"):
        # The last commit's: `dvc add` and `dvc repro` may have moved on the one in the tree.
        pointer = pointer_at(root, name)
        before[name], lost = _listed(root, cache, pointer)
        if lost and not gone:
            if name == "results":
                raise DataError(
                    f"{lost}: `dvc checkout results.dvc` or `dvc pull results.dvc` brings them back; "
                    "`anncestry keep --gone` says that they shall go"
                )
            del before[name]
            remarks.append(f"data.dvc stays as it is: {lost}; `dvc pull data.dvc` gets them")
        elif not (root / name).is_dir():
            del before[name]
    _dvc(root, "add", "--quiet", *before)
    changes: dict[str, Change] = {}
    for name, listing in before.items():
        pointer = read_pointer(root, name)
        changes[name] = Change.between(listing, _listing(cache, pointer) if pointer else {})
    message = describe(experiment, changes)
    if not _commit(root, [f"{name}.dvc" for name in before], message):
        message = ""
    if push:
        _push(root)
    return Kept(message, tuple(remarks))


def describe(experiment: str, changes: Mapping[str, Change]) -> str:
    """A commit message: how many cells and loads are new, changed and gone; of which systems; and what else."""
    results = changes["results"]
    states = {"new": results.new, "changed": results.changed, "gone": results.gone}
    total = {state: _count(paths) for state, paths in states.items()}
    head = ", ".join(_numbers(count, state) for state, count in total.items() if count)
    lines = [f"Results of {experiment}: {head or 'no cell new or changed'}", ""]
    for system in sorted({path.split("/")[2] for paths in states.values() for path in paths if _record_of(path)}):
        of = {state: _count(p for p in paths if p.split("/")[2:3] == [system]) for state, paths in states.items()}
        lines.append(f"{system}: " + ", ".join(_numbers(count, state) for state, count in of.items() if count))
    for name, change in changes.items():
        if change:
            lines.append(f"{name}/: {_files(change.new)} new, {len(change.changed)} changed, {len(change.gone)} gone")
    return "\n".join(lines).strip() + "\n"


def _record_of(path: str) -> tuple[str, str] | None:
    """What a file of `results/` is counted as, and the key of its record; None for tables, pages and the like."""
    noun, key = _COUNTED.get(path.split("/")[0]), _KEY.search(path)
    return (noun, key[1]) if noun and key else None


def _count(paths: Iterable[str]) -> Counter[str]:
    """Records by noun; the files of one record count once."""
    return Counter(record[0] for record in {_record_of(path) for path in paths} if record)


def _files(paths: Collection[str]) -> str:
    return f"{len(paths)} file{'' if len(paths) == 1 else 's'}"


def _numbers(count: Mapping[str, int], state: str) -> str:
    parts = [f"{count[noun]} {noun}{'s' if count[noun] > 1 else ''}" for noun in sorted(count)]
    return f"{' and '.join(parts)} {state}"


def _listed(root: Path, cache: Path, pointer: Pointer | None) -> tuple[Mapping[str, str], str]:
    """The listing of a pointer, and in words what of it is not here (empty if all is)."""
    if pointer is None:
        return {}, ""
    if not (cache / pointer.object).exists():
        return {}, f"{pointer.name}.dvc lists {pointer.files} files that were never pulled here"
    listing = _listing(cache, pointer)
    lost = sorted(
        path
        for path in listing
        if not path.startswith(_DERIVED) and not os.path.exists(root / pointer.name / path)  # noqa: PTH110
    )
    if not lost:
        return listing, ""
    more = f" and {len(lost) - 1} more" if lost[1:] else ""
    return listing, f"{pointer.name}.dvc lists what is not here: {pointer.name}/{lost[0]}{more}"


def _listing(cache: Path, pointer: Pointer) -> Mapping[str, str]:
    """Path → md5 of every file that a pointer stands for."""
    return {entry["relpath"]: entry["md5"] for entry in read_json(cache / pointer.object)}


def _commit(root: Path, pointers: list[str], message: str) -> bool:
    """Commit the pointers that changed, leaving all else of the user's as it is, staged or not."""
    _git(root, "add", "--", *pointers)
    if not _git(root, "status", "--porcelain", "--", *pointers):
        return False
    _git(root, "commit", "--quiet", "--message", message, "--", *pointers)
    return True


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"git {arguments[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _push(root: Path) -> None:
    # DVC's own progress is the user's to see: a push can take long.
    if subprocess.run(_command("push"), cwd=root, env=_environment(), check=False).returncode:
        raise DataError("`dvc push` failed, what arrived stays; the commit is made: repeat `anncestry keep --push`")


def _dvc(root: Path, *arguments: str) -> None:
    done = subprocess.run(
        _command(*arguments), cwd=root, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DataError(f"dvc {arguments[0]}: {(done.stderr or done.stdout).strip()}")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "DVC_NO_ANALYTICS": "1"}
