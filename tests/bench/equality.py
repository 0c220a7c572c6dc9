"""Whether a commit and this tree publish the same: all keys, and every byte that is made from kept results.

python tests/bench/equality.py BASE [--kept ARCHIVE] [--only EXPERIMENT …]      (make equality BASE=commit)

Of every experiment in config/ and in the archive, in an empty folder: each job that Snakemake would run, with its files
(their paths hold all keys, and a key is the digest of its spec), message and priority; `cells`, `plan`, `plan --paper`.
Of every experiment in the archive, whose results were measured once: table, page and all files beside it, `why`,
`plan`, `summary`, `verify`, `compare`, `gc`, `drop`, exports; and what is said of results that are damaged, missing, or
of another config. The archive is the evidence that the repository ships, or one that `make kept` measured: config/,
data/ and results/ without tables and pages.

Only the Snakefile and the program are asked, so that all within may change. `Rules` lists what may differ. Both sides
are run by the Python of this environment. Their files stay in scratch/equality/, those of BASE for the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise, product, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scratch" / "equality"
EVIDENCE = ROOT / "evidence"
CALLS = Path(__file__).with_name("equality_calls.py")
NUMBERS = 40
"""Of an experiment, that `why` is asked about; about every fourth of them also as JSON."""
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""How an archive of one's own is unpacked; Python knows the word from 3.11.4 on, and Debian 12 has 3.11.2."""
SHOWN = 40
"""Files that are named, of those that differ."""

Call = tuple[str, list[str]]


@dataclass(frozen=True)
class Side:
    """A checkout, and the environment that it is asked in."""

    checkout: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, folder: Path, command: Sequence[str | Path], said: str | None = None) -> tuple[int, str]:
        """Exit status, and standard output and error of a command in `folder`."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANNCESTRY_")}
        own = {
            "PYTHONPATH": f"{self.checkout}/src:{self.checkout}",
            "ANNCESTRY_CONFIG": "config",
            "OPENBLAS_NUM_THREADS": "1",
        }
        own["GIT_DIR"] = os.devnull  # no repository: neither its commits nor its branches are part of what is published
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**inherited, **own, **self.environment},
            input=said,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def ask(self, calls: Sequence[tuple[Path, Path, list[str]]]) -> None:
        """Make calls, each with its folder and the file that takes what is said (see equality_calls.py)."""
        given = [(str(folder), str(file), arguments) for folder, file, arguments in calls]
        status, said = self.run(HERE, [CALLS, self.checkout], json.dumps(given))
        if status or said:
            raise SystemExit(f"{CALLS} in {self.checkout}: {said}")

    def about(self, folder: Path, out: Path, experiment: str, calls: Iterable[Call]) -> None:
        """Ask the program about an experiment in `folder`; each answer becomes a file of the call's name in `out`."""
        self.ask([(folder, out / f"{name}.txt", ["--experiment", experiment, *words]) for name, words in calls])


# ---- one side ----


def render(side: Side, kept: Path, out: Path, only: Sequence[str] = (), numbers: int = NUMBERS) -> None:
    """Write all that `side` says and draws, by `Rules`, to the new folder `out`."""
    HERE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=HERE) as name:
        work = Path(name).resolve()
        raw, empty, cores = work / "out", work / "empty", os.cpu_count() or 1
        _folder(side, kept, empty, results=False)
        known = ["default", *sorted(path.stem for path in (empty / "config" / "experiments").glob("*.yaml"))]
        asked = [name for name in known if name in only or not only]
        measured = [name for name in asked if (kept / "config" / "experiments" / f"{name}.yaml").exists()]
        with ThreadPoolExecutor(cores) as pool:
            tasks = [pool.submit(_of_results, side, kept, work / name, raw, name, numbers) for name in measured]
            tasks += [pool.submit(_of_config, side, empty, raw, asked[at::cores]) for at in range(cores)]
            for task in tasks:
                task.result()
        _between(side, kept, work / "between", raw, measured)
        shutil.rmtree(out, ignore_errors=True)
        Rules(work, side.checkout).apply(raw, out)


def _folder(side: Side, kept: Path, folder: Path, *, results: bool) -> None:
    """A working directory: the checkout's config, with what only the archive's has, and where asked linked results."""
    shutil.copytree(kept / "config" / "experiments", folder / "config" / "experiments")
    shutil.copytree(side.checkout / "config", folder / "config", dirs_exist_ok=True)
    with open(folder / "config" / "workloads.yaml", "a") as file:
        file.write("\n" + (kept / "config" / "workloads.yaml").read_text())
    for part in ("data", "results") if results else ("results/platform",):  # else what fits is said of this machine
        if (kept / part).exists():
            shutil.copytree(kept / part, folder / part, copy_function=os.link)


def _of_config(side: Side, folder: Path, raw: Path, names: Sequence[str]) -> None:
    """What experiments consist of, where nothing is there yet."""
    questions = [["cells"], ["plan"], ["plan", "--paper"]]
    asked = [(folder, raw / "config" / name / "jobs.txt", ["jobs", name]) for name in names]
    for name, words in product(names, questions):
        asked.append((folder, raw / "config" / name / f"{''.join(words)}.txt", ["--experiment", name, *words]))
    side.ask(asked)


def _of_results(side: Side, kept: Path, folder: Path, raw: Path, name: str, numbers: int) -> None:
    """All that is made from the results of an experiment, before and after its page is drawn."""
    _folder(side, kept, folder, results=True)
    out = raw / "kept" / name
    side.about(folder, out, name, [("cells", ["cells"]), ("plan-before", ["plan"]), ("summary-before", ["summary"])])
    # No other rule may run: where a key has changed, this fails, and measures nothing.
    rules = ["--cores", "1", "--nocolor", "--allowed-rules", "all", "table", "report"]
    config = ["--config", f"experiment={name}", "config_dir=config"]
    status, said = side.run(folder, ["-m", "snakemake", "--snakefile", side.checkout / "Snakefile", *rules, *config])
    if status:
        (out / "no-page.txt").write_text(said)
        return
    shutil.rmtree(folder / ".snakemake")  # its notes of how long that took: estimates go by them
    for kind in ("table", "report"):
        (made,) = (folder / "results" / kind).glob(f"{name}@*")
        shutil.copytree(made, out / kind)
    rows = json.loads((out / "table" / "numbers.json").read_text())
    side.about(folder, out, name, [*_calls(rows, numbers), *_comparisons(rows, name), *_published(side.checkout)])
    for made in ("prov.json", "crate/ro-crate-metadata.json", "compared"):
        if (folder / made).exists():
            (folder / made).rename(out / Path(made).name)
    _elsewhere(side, folder, out, name, rows)


def _calls(rows: Sequence[Mapping[str, Any]], numbers: int) -> Iterator[Call]:
    """What is asked of an experiment with a page."""
    for line in ("plan", "plan --paper", "summary", "verify", "verify --quick", "drop *"):
        yield line.replace(" --", "-").replace(" *", ""), line.split()
    yield "export-prov", ["export", "prov", "prov.json"]
    yield "export-crate", ["export", "crate", "crate"]
    for at, number in enumerate(_sample({row["number_id"] for row in rows}, numbers)):
        yield f"why/{number}", ["why", number]
        if at % 4 == 0:
            yield f"why/{number}.json", ["why", "--json", number]
    names = {name: str(rows[0][name]) for name in ("dataset", "system", "topology")}
    yield "why-ambiguous", ["why", *(f"--{name}={value}" for name, value in names.items())]
    yield "why-unknown", ["why", "n0"]


def _sample(ids: Iterable[str], size: int) -> list[str]:
    """The same few of the same ids, wherever they are drawn."""
    return sorted(ids, key=lambda number: hashlib.sha256(number.encode()).digest())[:size]


def _comparisons(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[Call]:
    """Each system with the next, the first two with a page."""
    systems = sorted({str(row["system"]) for row in rows})
    for number, (a, b) in enumerate(pairwise(systems)):
        yield f"compare/{a}-{b}", ["compare", a, b, *([] if number else ["--out", "compared"])]
        yield f"compare/{a}-{b}-all", ["compare", a, b, "--all", "--noise", "5"]
    yield "compare/unknown", ["compare", name, "nothing-is-called-so"]


def _published(checkout: Path) -> Iterator[Call]:
    """`why` of a few numbers that others published."""
    lines = (checkout / "config" / "published" / "numbers.csv").read_text().splitlines()[1:]
    for number in _sample((line.partition(",")[0] for line in lines), 8):
        yield f"why/{number}", ["why", number]


def _elsewhere(side: Side, folder: Path, out: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """What is said of results that are damaged, of missing ones, and by another config."""
    quoted = sorted({str(row["record"]) for row in rows if row["record_sha256"]})
    chosen = quoted[:: max(1, len(quoted) // 6)]
    number = next(row["number_id"] for row in rows if row["record"] == chosen[0])
    kept = {path: (folder / path).read_bytes() for path in chosen}
    for at, (path, body) in enumerate(kept.items()):
        (folder / path).unlink()  # a link to the archive's: never written through
        (folder / path).write_bytes((body[:-2], body.replace(b"1", b"2", 1), b"[]")[at % 3])
    side.about(folder, out / "damaged", name, [("verify", ["verify"]), ("why", ["why", number]), ("plan", ["plan"])])
    for path in chosen:
        (folder / path).unlink(missing_ok=True)  # or set aside meanwhile, as damaged
    for kind in ("table", "report"):
        (made,) = (folder / "results" / kind).glob(f"{name}@*")
        shutil.rmtree(made)
    plan = [("cells", ["cells"]), ("plan", ["plan"]), ("summary", ["summary"])]
    side.about(folder, out / "missing", name, [*plan, ("verify", ["verify"])])
    for path, body in kept.items():
        (folder / path).write_bytes(body)
    config = folder / "config" / "config.yaml"
    changed = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**changed, "seed": changed["seed"] + 1, "ef_search": 77}))
    side.about(folder, out / "other-config", name, [("plan", ["plan"]), ("cells", ["cells"])])


def _between(side: Side, kept: Path, folder: Path, raw: Path, names: Sequence[str]) -> None:
    """Comparisons of experiments, and what `gc` would remove, in a folder that has the tables of all of them."""
    tables = {name: raw / "kept" / name / "table" for name in names if (raw / "kept" / name / "table").exists()}
    _folder(side, kept, folder, results=True)
    for name, table in tables.items():
        key = json.loads((table / "record.json").read_text())["key"]
        shutil.copytree(table, folder / "results" / "table" / f"{name}@{key}")
    sides = ((f"{a}-{b}", ["compare", f"experiment:{a}", f"experiment:{b}", "--all"]) for a, b in pairwise(tables))
    side.about(folder, raw / "between", "default", [*sides, ("gc", ["gc"]), ("gc-results", ["gc", "--results"])])


# ---- what may differ ----


class Rules:
    """The only differences that are none, each replaced by words in angle brackets that are the same on both sides.

    - Keys of table and page, and `sources` in their specs: they hold a digest of the program's source files.
    - `code`, `created` and `seal` of the records of table and page: what made them, and when; exports repeat the time.
    - The digest of a file that holds such a part. The file itself is compared, so that its digest says no more.
    - The folders of this test, and those of the checkouts.
    - Lines of progress: how many there are, and what they say, is a matter of speed.
    """

    KEYED = re.compile(rb"results/(table|report)/([^/@\s\"]+)@([0-9a-f]{12})")
    OWN = re.compile(rb'"(created|seal|sources)": "([^"]*)"')
    CODE = re.compile(rb'"code": \{[^{}]*\}')
    PROGRESS = re.compile(rb"^.*%\|.*\[\d+:\d\d<.*\]\n", re.MULTILINE)
    DIGEST = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{12})(?![0-9a-f])")

    def __init__(self, work: Path, checkout: Path) -> None:
        self._words = {str(work).encode(): b"<folder>", str(checkout).encode(): b"<checkout>"}

    def apply(self, raw: Path, out: Path) -> None:
        """Write the files below `raw` to `out`."""
        files = {path.relative_to(raw): path.read_bytes() for path in sorted(raw.rglob("*")) if path.is_file()}
        for path, body in files.items():
            self._words |= {key: b"<key of %b %b>" % (kind, name) for kind, name, key in self.KEYED.findall(body)}
            if self._is_record(path):
                self._words |= {value: b"<%b>" % name for name, value in self.OWN.findall(body)}
        plain = {path: self._without(path, body) for path, body in files.items()}
        while True:
            digests: dict[bytes, bytes] = {}
            for path, body in files.items():
                if plain[path] != body:
                    digest, word = hashlib.sha256(body).hexdigest().encode(), b"<sha256 of %b>" % str(path).encode()
                    digests |= {digest: word, digest[:12]: word}
            again = {path: self._with(digests, body) for path, body in plain.items()}
            if again == plain:
                break
            plain = again
        for path, body in plain.items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(body)

    def _with(self, digests: Mapping[bytes, bytes], body: bytes) -> bytes:
        return self.DIGEST.sub(lambda found: digests.get(found[0], found[0]), body)

    def _is_record(self, path: Path) -> bool:
        return path.name == "record.json" and path.parent.name in ("table", "report")

    def _without(self, path: Path, body: bytes) -> bytes:
        """A file without any of these parts, but for digests."""
        for part, word in self._words.items():
            body = body.replace(part, word)
        if self._is_record(path):
            body = self.CODE.sub(b'"code": <code>', body, count=1)
        return self.PROGRESS.sub(b"", body) if path.suffix == ".txt" else body


# ---- both sides ----


def differences(base: Path, now: Path) -> Iterator[str]:
    """A line for each file that is not the same on both sides, with the first place at which it differs."""
    sides = [{path.relative_to(side): path for path in side.rglob("*") if path.is_file()} for side in (base, now)]
    for name in sorted(sides[0].keys() | sides[1].keys()):
        missing = [said for said, side in zip(("base", "this tree"), sides, strict=True) if name not in side]
        if missing:
            yield f"{name}: not of {missing[0]}"
            continue
        before, after = (side[name].read_bytes() for side in sides)
        if before != after:
            yield f"{name}{_first(before, after)}"


def _first(before: bytes, after: bytes) -> str:
    """Where two files differ first, and what stands there."""
    lines = enumerate(zip_longest(before.split(b"\n"), after.split(b"\n"), fillvalue=b"<end of file>"), 1)
    number, pair = next((number, pair) for number, pair in lines if pair[0] != pair[1])
    at = next((at for at, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    shown = [part[max(0, at - 60) : at + 100].decode(errors="backslashreplace") for part in pair]
    return f":{number}, column {at + 1}\n  - {shown[0]}\n  + {shown[1]}"


def shipped() -> tuple[Path, str]:
    """Folder with the results in `evidence/` and their experiments, as an archive holds them; and their digest."""
    parts = ("data", "results")
    digest = hashlib.sha256(b"".join((EVIDENCE / f"{part}.dvc").read_bytes() for part in parts)).hexdigest()[:12]
    folder = HERE / f"kept-{digest}"
    if not folder.exists():
        HERE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HERE) as name:
            for part in parts:
                get = ["dvc", "get", "--quiet", "--remote", "evidence", ".", f"evidence/{part}"]
                # From its root: DVC finds no path of a repository from a folder within it.
                subprocess.run([sys.executable, "-m", *get, "--out", f"{name}/{part}"], cwd=ROOT, check=True)
            experiments = Path(name, "config", "experiments")
            experiments.mkdir(parents=True)
            for experiment in runpy.run_path(str(ROOT / "tools" / "pages" / "measured.py"))["EXPERIMENTS"]:
                shutil.copy(ROOT / "config" / "experiments" / f"{experiment}.yaml", experiments)
            Path(name, "config", "workloads.yaml").touch()  # none beside this tree's
            Path(name).rename(folder)
            Path(name).mkdir()
    return folder, digest


def unpack(archive: Path) -> tuple[Path, str]:
    """Folder with what the archive holds, and the archive's digest."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:12]
    folder = HERE / f"kept-{digest}"
    if not folder.exists():
        HERE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HERE) as name:
            if archive.suffix == ".zst":
                with (
                    pa.input_stream(str(archive), compression="zstd") as stream,
                    tarfile.open(fileobj=stream, mode="r|") as tar,
                ):
                    tar.extractall(name, **SAFELY)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(name, **SAFELY)
            Path(name).rename(folder)
            Path(name).mkdir()
    return folder, digest


def of_commit(name: str, kept: Path, digest: str, only: Sequence[str]) -> Path:
    """What a commit says and draws; made once for a commit, archive, environment and this program."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--verify", f"{name}^{{commit}}"], capture_output=True, text=True)
    if commit.returncode:
        raise SystemExit(f"{name}: no commit of this repository")
    made_by = b"".join(file.read_bytes() for file in (Path(__file__), CALLS, ROOT / "requirements.lock"))
    salt = hashlib.sha256(made_by + repr(sorted(only)).encode()).hexdigest()[:8]
    out = HERE / f"base-{commit.stdout[:12]}-{digest}-{salt}"
    if not out.exists():
        with tempfile.TemporaryDirectory(prefix="checkout-", dir=HERE) as folder:
            packed = subprocess.run([*git, "archive", commit.stdout.strip()], stdout=subprocess.PIPE, check=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
            _timed(f"{name} ({commit.stdout[:12]})", lambda: render(Side(Path(folder)), kept, out, only))
    return out


def _timed(what: str, act: Callable[[], None]) -> None:
    started = time.monotonic()
    act()
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)


def main() -> int:
    """1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("base", nargs="?", metavar="BASE", help="a commit")
    parser.add_argument("--kept", type=Path, metavar="ARCHIVE", help="kept results (default: evidence/)")
    parser.add_argument("--only", nargs="+", default=[], metavar="EXPERIMENT", help="of these experiments only")
    parser.add_argument("--twice", action="store_true", help="this tree against itself in another environment")
    options = parser.parse_args()
    if bool(options.base) == options.twice:
        parser.error("give a commit, or --twice")
    kept, digest = unpack(options.kept) if options.kept else shipped()
    now = HERE / "now"
    here, there = ({"PYTHONHASHSEED": seed, "TZ": zone} for seed, zone in (("1", "UTC"), ("4242", "Asia/Kathmandu")))
    if options.twice:
        base = HERE / "again"
        _timed("this tree, once more", lambda: render(Side(ROOT, there), kept, base, options.only))
    else:
        base = of_commit(options.base, kept, digest, options.only)
    _timed("this tree", lambda: render(Side(ROOT, here), kept, now, options.only))
    found = list(differences(base, now))
    for line in found[:SHOWN]:
        print(line)
    total = sum(path.is_file() for path in now.rglob("*"))
    said = f"{len(found)} of {total} files differ" if found else f"equal: {total} files"
    print(f"{said}\ndiff -r {base} {now}" if found else said)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
