"""Versions of `data/` and `results/` in git and DVC: the guard of a half clone, `keep`, and the results of revisions.

A pointer (`results.dvc`, in git) names a listing (`….dir` in DVC's cache), which names every file by its md5. The
listing is in the cache of a clone exactly if that clone pulled or made it, and so tells whether its files are here.
The guard runs whenever Snakemake parses: it reads small texts, and asks DVC itself only before it refuses.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from anncestry import durable
from anncestry.cells.stage import RESULTS, STAGES, stage_at
from anncestry.errors import DataError
from anncestry.home import RUN
from anncestry.provenance.records import read_json
from anncestry.user_cache import expanded

_LISTING = re.compile(r"^\s*(?:- )?md5: ([0-9a-f]{32})\.dir$", re.MULTILINE)
_FILES = re.compile(r"^\s*(?:- )?nfiles: (\d+)$", re.MULTILINE)
_OWN_REMOTE = re.compile(r"^\s*(?:- )?remote: (\S+)$", re.MULTILINE)
_KEY = re.compile(r"@([0-9a-f]{12})\.")
_COUNTED = {"load": "load", "query": "cell", "pair": "pair"}
"""Folders of `results/` whose records are counted in a commit message, and what one of them is called."""

REVISIONS = Path("scratch/revision")
"""Where the results of revisions are laid out: a folder for each listing, whose content never changes."""

_NAMES_MAX = 12

_DERIVED = ("metrics/", "plots/", "table/", "report/")
"""Folders of `results/` that are made from records alone: what leaves them is no loss, and `drop` removes tables."""


@dataclass(frozen=True)
class Pointer:
    """What `NAME.dvc` says: the listing of the folder NAME, how many files that holds, and its own remote, if any."""

    name: str
    listing: str
    files: int
    remote: str | None = None

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
    listing, files, remote = _LISTING.search(text), _FILES.search(text), _OWN_REMOTE.search(text)
    if listing is None or files is None or files[1] == "0":
        return None
    return Pointer(name, listing[1], int(files[1]), remote[1] if remote else None)


class Settings:
    """The parts of `.dvc/config` (and of `.dvc/config.local`, which wins) that say where things lie.

    It is that of the folder itself or, as DVC has it, of the first one above: evidence/ lies within a checkout.
    """

    def __init__(self, root: Path) -> None:
        own = root.absolute() / ".dvc"
        self._folder = next((at for up in own.parents if (at := up / ".dvc").is_dir()), own)
        self._parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._parser.read([self._folder / "config", self._folder / "config.local"])
        except configparser.Error as error:
            raise DataError(f"{self._folder}/config: {' '.join(str(error).split())}") from None

    def _get(self, section: str, key: str) -> str | None:
        value = self._parser.get(section, key, fallback=None)
        return value.strip("'\"") if value else None

    def _path(self, text: str) -> Path:
        """DVC means paths relative to the folder of its config."""
        return self._folder / expanded(text)

    @property
    def cache(self) -> Path:
        return self._path(self._get("cache", "dir") or "cache")

    def offered(self, pointer: Pointer) -> str | None:
        """The name of the pointer's own or the default remote if the listing can be had from it, as a glance tells.

        A local remote is looked at; of one across a network it is believed, because a parse must not wait for it.
        """
        name = pointer.remote or self._get("core", "remote")
        url = self._get(f"'remote \"{name}\"'", "url") if name else None
        if not url:
            return None
        return name if "://" in url or (self._path(url) / pointer.object).exists() else None


def _cache(root: Path) -> Path:
    """DVC's cache, by DVC itself, which also reads the config of the user and of the machine; takes a second."""
    if find_spec("dvc") is None:
        raise ModuleNotFoundError("No module named 'dvc'", name="dvc")
    asked = _dvc(root, "cache", "dir")
    if asked.returncode or not asked.stdout.strip():
        raise DataError(f"dvc cache dir: {(asked.stderr or asked.stdout).strip() or 'it says nothing'}")
    return Path(asked.stdout.strip().splitlines()[-1])


def _is_cached(root: Path, pointer: Pointer) -> bool:
    """Whether DVC's cache has the listing, wherever that is; not known, where DVC can't be asked."""
    with suppress(DataError, ModuleNotFoundError):
        return (_cache(root) / pointer.object).exists()
    return False


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
    if remote and not (here and _is_cached(root, pointer)):
        which = "results that are missing here" if not here else "newer results than those here"
        raise DataError(
            f"results.dvc lists {which}: run `dvc pull results.dvc` (from remote {remote}) first, "
            "or `git rm results.dvc` to measure everything again"
        )


Change = Mapping[str, Set[str]]
"""Paths within a folder that one listing has and another has not, or has otherwise: those new, changed and gone."""


def _change(before: Mapping[str, str], after: Mapping[str, str]) -> Change:
    """What led from one listing (path → md5) to another."""
    return {
        "new": after.keys() - before.keys(),
        "changed": {path for path in after.keys() & before.keys() if after[path] != before[path]},
        "gone": before.keys() - after.keys(),
    }


def keep(
    root: Path,
    experiment: str,
    *,
    gone: bool = False,
    vouch: Callable[[Iterable[str]], None] = lambda paths: None,
) -> tuple[str, list[str]]:
    """Add `data/` and `results/` to DVC and commit their pointers, nothing else.

    Returns the commit's message (empty if there was nothing new), and what the user should know. `vouch` gets the
    paths in `results/` that are new or changed, and may raise DataError: then nothing is committed.
    A result that the pointer lists and that is not here stops it, unless `gone` says that it shall go: a clone that
    forgot to pull must not take its team's results away. Data can be made again: where some of it is not here, its
    pointer is left as it is.
    """
    if not (root / ".dvc").is_dir():
        raise DataError(f"{root.resolve()}: no DVC here (.dvc/ is missing)")
    if not (root / "results").is_dir():
        raise DataError(f"results/: missing; run `{RUN}`")
    refuse_half_clone(root)
    cache = _cache(root)
    remarks: list[str] = []
    before: dict[str, Mapping[str, str]] = {}
    for name in ("results", "data"):
        # The last commit's: `dvc add` and `dvc repro` may have moved on the one in the tree.
        pointer = pointer_at(root, name)
        before[name], lost = _listed(root, cache, pointer)
        # Data can be made again: what is not here was not removed on purpose, whatever `gone` says of results.
        if lost and (not gone or name == "data"):
            if name == "results":
                raise DataError(
                    f"{lost}: `dvc checkout results.dvc` or `dvc pull results.dvc` restores them; "
                    "`anncestry keep --gone` deletes them from DVC"
                )
            del before[name]
            remarks.append(f"data.dvc is unchanged: {lost}; `dvc pull data.dvc` fetches them")
        elif not (root / name).is_dir():
            del before[name]
    pointers = {name: path.read_text() for name in before if (path := root / f"{name}.dvc").exists()}
    added = _dvc(root, "add", "--quiet", *before)
    if added.returncode:
        raise DataError(f"dvc add: {(added.stderr or added.stdout).strip()}")
    changes: dict[str, Change] = {}
    for name, listing in before.items():
        pointer = read_pointer(root, name)
        changes[name] = _change(listing, _listing(cache, pointer) if pointer else {})
    try:
        vouch(changes["results"]["new"] | changes["results"]["changed"])
    except DataError:
        for name in before:
            if name in pointers:
                (root / f"{name}.dvc").write_text(pointers[name])
            else:
                (root / f"{name}.dvc").unlink(missing_ok=True)
        raise
    message = describe(experiment, changes)
    if not _commit(root, [f"{name}.dvc" for name in before], message):
        message = ""
    return message, remarks


def push(root: Path) -> None:
    """Send the files off. The user sees DVC's own progress: it can take long."""
    if _dvc(root, "push", capture_output=False).returncode:
        raise DataError("`dvc push` failed after the commit: repeat `anncestry keep --push` to send the rest")


def describe(experiment: str, changes: Mapping[str, Change]) -> str:
    """A commit message: how many cells and loads are new, changed and gone; of which systems; and what else."""
    states = changes["results"]
    total = {state: _count(paths) for state, paths in states.items()}
    head = ", ".join(_numbers(count, state) for state, count in total.items() if count)
    lines = [f"Results of {experiment}: {head or 'no cell new or changed'}", ""]
    for system in sorted({path.split("/")[2] for paths in states.values() for path in paths if _record_of(path)}):
        counts = {state: _count(p for p in paths if p.split("/")[2:3] == [system]) for state, paths in states.items()}
        lines.append(f"{system}: " + ", ".join(_numbers(count, state) for state, count in counts.items() if count))
    for name, change in changes.items():
        if any(change.values()):
            new, changed, gone = (len(change[state]) for state in ("new", "changed", "gone"))
            lines.append(f"{name}/: {new} file{'' if new == 1 else 's'} new, {changed} changed, {gone} gone")
    return "\n".join(lines).strip() + "\n"


def _record_of(path: str) -> tuple[str, str] | None:
    """What a file of `results/` is counted as, and the key of its record; None for tables, pages and the like."""
    noun, key = _COUNTED.get(path.split("/")[0]), _KEY.search(path)
    return (noun, key[1]) if noun and key else None


def _count(paths: Iterable[str]) -> Counter[str]:
    """Records by noun; the files of one record count once."""
    return Counter(record[0] for record in {_record_of(path) for path in paths} if record)


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
    """What git prints; DataError where it fails, or is not installed."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise DataError("git: not installed") from None
    if done.returncode:
        raise DataError(f"git {arguments[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _dvc(root: Path, *arguments: str, capture_output: bool = True) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "dvc", *arguments], {**os.environ, "DVC_NO_ANALYTICS": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=capture_output, text=True, check=False)


# Results of revisions


@dataclass(frozen=True)
class Kept:
    """A commit that changed which results are kept: its hash, its time as ISO 8601, the first line of its message."""

    commit: str
    at: str
    subject: str


class Revisions:
    """The revisions of the repository that holds `root`, with their results laid out beside the checkout.

    What `results.dvc` lists at a revision comes from DVC's cache, else from the default remote. Only what a comparison
    reads is fetched: records, tables and metrics, not the samples. Without git there are no revisions.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def commit(self, name: str) -> str:
        """The full hash of the commit that git understands by `name` (HEAD~3, a tag, a branch); empty if none."""
        return self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()

    def names(self) -> list[str]:
        """Branches and tags, the newest first, for people; the rest as a number."""
        names = self._git(
            "for-each-ref", "--sort=-creatordate", "--format=%(refname:short)", "refs/heads", "refs/tags"
        ).split()
        more = [f"{len(names) - _NAMES_MAX} more"] if len(names) > _NAMES_MAX else []
        return names[:_NAMES_MAX] + more

    def kept(self, since: str = "") -> list[Kept]:
        """The commits of this branch that changed its kept results, the oldest first; those after `since`, if given.

        Of a merge only the merge, not what it brought in: between those, the results were not these. DataError if no
        commit is called `since`.
        """
        if since and not self.commit(since):
            raise DataError(f"{since!r} names no commit; branches and tags: {', '.join(self.names()) or 'none'}")
        commits = f"{self.commit(since)}..HEAD" if since else "HEAD"
        form = "--format=%H%x1f%cI%x1f%s"
        said = self._git("log", "--first-parent", "--reverse", form, commits, "--", "results.dvc")
        return [Kept(*line.split("\x1f", 2)) for line in said.splitlines()]

    def results(self, name: str) -> Path:
        """The folder with the records, tables and metrics that were kept at a revision.

        DataError if nothing was kept then, or if neither cache nor remote has it.
        """
        commit = self.commit(name)
        pointer = pointer_at(self._root, "results", commit)
        if pointer is None:
            raise DataError(f"revision {name} ({commit[:12]}): has no results; `anncestry keep` adds them to a commit")
        folder = self._root / REVISIONS / pointer.listing
        if not folder.is_dir():
            self._lay_out(name, commit, folder)
        return folder / "results"

    def _lay_out(self, name: str, commit: str, folder: Path) -> None:
        """Fetch into a folder of another name first: one that is there is complete."""
        from dvc.api import DVCFileSystem  # takes a second

        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            tree = DVCFileSystem(str(self._root), rev=commit)
            paths = [path for path in tree.find("results") if _is_read(path)]
            tree.get(paths, [str(temporary / path) for path in paths])
            if not folder.is_dir():
                durable.place(temporary, folder)
        except Exception as error:  # DVC's errors, and those of its remotes' libraries, have no root in common
            raise DataError(
                f"revision {name} ({commit[:12]}): its results are neither in DVC's cache nor on the remote"
                f" ({str(error) or type(error).__name__})"
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _git(self, *arguments: str) -> str:
        """What git prints; nothing where it fails."""
        try:
            return _git(self._root, *arguments)
        except DataError:
            return ""


def _is_read(path: str) -> bool:
    """Whether a comparison reads a file of the results."""
    stage = stage_at(path)
    if stage is STAGES["table"]:
        return path.endswith("/numbers.parquet")
    is_metrics = Path(path).parts[1] == "metrics"
    return path.endswith(".json") and (is_metrics or (stage is not None and stage.name in RESULTS))
